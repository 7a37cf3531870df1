"""Who owns which blocks when a parameter-server job starts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from hpcbal.config import ParamServerConfig
from hpcbal.errors import InputError


@dataclass(frozen=True, slots=True)
class FirstRoles:
    """Executors that work and that serve, in order of rank; the others stand by."""

    workers: tuple[int, ...]
    servers: tuple[int, ...]


def first_roles(config: ParamServerConfig, executors: Sequence[int]) -> FirstRoles:
    """The roles at the start: as the file says, and about three workers for each server otherwise.

    The first executors work, the ones after them serve. Nothing is known of the job yet, and what is wrong
    costs a few turns: the job then configures itself.

    Args:
        config: the configuration.
        executors: their ranks, ascending; at least two.

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
            "ranks but the first; lower them, or start more ranks"
        )
    return FirstRoles(tuple(executors[:workers]), tuple(executors[workers : workers + servers]))
