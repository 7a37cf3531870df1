"""Who owns which blocks when a parameter-server job starts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from hpcbal.config import ParamServerConfig
from hpcbal.errors import InputError
from hpcbal.paramserver.store.ownership import dealt_out, dealt_out_by_table
from hpcbal.runtime.paramserver.checkpoint import DATA, PARAMETERS, SavedJob
from hpcbal.runtime.paramserver.cutting import Cut


@dataclass(frozen=True, slots=True)
class FirstRoles:
    """Executors that work and that serve, in order of rank; the others stand by."""

    workers: tuple[int, ...]
    servers: tuple[int, ...]


def first_roles(config: ParamServerConfig, executors: Sequence[int]) -> FirstRoles:
    """The roles at the start of a job: as the file says, and about three workers for each server otherwise.

    The first executors work, the ones after them serve. Nothing is known of the job yet, and what is wrong
    costs a few turns: the job then configures itself.

    Args:
        config: the configuration.
        executors: ranks of those in use, ascending; at least two.

    Raises:
        InputError: if the file asks for more than there are.
    """
    count = len(executors)
    if config.servers != "auto":
        servers = config.servers
    else:
        servers = max(1, count // 4) if config.workers == "auto" else count - config.workers
    workers = count - servers if config.workers == "auto" else config.workers
    if workers < 1 or servers < 1 or workers + servers > count:
        raise InputError(
            f"workers: {config.workers} and servers: {config.servers} do not fit {count} executors, all "
            "ranks in use but the first; lower them, raise executors.start if it is set, or start more ranks"
        )
    return FirstRoles(tuple(executors[:workers]), tuple(executors[workers : workers + servers]))


def first_owners(
    config: ParamServerConfig, cut: Cut, in_use: Sequence[int], saved: SavedJob | None
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The owner of each data block and of each parameter block at the start.

    A job that goes on keeps the roles that it has chosen itself, if the executors are still there.

    Args:
        config: the configuration.
        cut: the numbers of blocks.
        in_use: ranks of the executors that the job may use, ascending; at least two.
        saved: the checkpoint from which it goes on; None: it starts.

    Raises:
        InputError: if the file asks for more workers and servers than there are.
    """
    if saved is not None and config.workers == config.servers == "auto":
        data, parameters = saved.holder[DATA], saved.holder[PARAMETERS]
        if {*data, *parameters} <= {*in_use}:
            if config.tune.enabled:
                return tuple(data), tuple(parameters)
            # Shares are even then, unless the stop came while blocks moved.
            workers, servers = sorted({*data}), sorted({*parameters})
            return dealt_out(cut.data, workers), dealt_out_by_table(cut.parameters, servers)
    roles = first_roles(config, in_use)
    return dealt_out(cut.data, roles.workers), dealt_out_by_table(cut.parameters, roles.servers)


def without_blocks(
    config: ParamServerConfig, data_owner: Sequence[int], parameter_owner: Sequence[int]
) -> list[str]:
    """A warning for each role for which the file asks for more executors than there are blocks."""
    notes = []
    for key, wanted, owners, blocks in (
        ("workers", config.workers, data_owner, "blocks.data"),
        ("servers", config.servers, parameter_owner, "blocks.parameters"),
    ):
        if wanted != "auto" and len(owners) < wanted:
            notes.append(
                f"warning: {key}: got {wanted}, but there are {len(owners)} blocks, so "
                f"{wanted - len(owners)} of them stand by; raise {blocks}, or lower {key}"
            )
    return notes
