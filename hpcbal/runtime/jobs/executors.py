"""Which executors a job that has all ranks for itself may use, and what each of them does at its start."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from hpcbal.cluster.roles import executors_of
from hpcbal.config import ParamServerConfig
from hpcbal.errors import InputError
from hpcbal.paramserver.store.layout import dealt_out, dealt_out_by_table
from hpcbal.runtime.jobs.checkpoint import DATA, PARAMETERS, SavedJob
from hpcbal.runtime.jobs.loading import Cut
from hpcbal.telemetry.files.atomic_file import cannot_read, regular_file

MOST_CHARACTERS = 1 << 16
"""Most characters of the file that are read."""

LOOK_INTERVAL_S = 0.5
"""Between two looks at the file."""


class ExecutorSupply:
    """Says which executors a job has. A file, as long as it is there, wins over the schedule.

    Args:
        config: the job.
        executors: ranks of all executors, ascending.
        path: of the file; None: only the schedule counts.

    Raises:
        InputError: if the schedule asks for executors that there are not.
    """

    def __init__(self, config: ParamServerConfig, executors: Sequence[int], path: Path | None) -> None:
        self._executors = tuple(executors)
        self._path = path
        self._schedule = [(0, self._first("executors.start", config.executors.start))]
        for i, change in enumerate(config.executors.schedule):
            use = self._first(f"executors.schedule.{i}.use", change.use)
            self._schedule.append((change.after_epoch, use))
        self._text: str | None = None
        self._of_file: tuple[int, ...] | None = None
        self._due_s = 0.0
        self._problem = self._reported = ""

    def in_use(self, epochs: int) -> tuple[int, ...]:
        """The executors that the job may use now, ascending; at least two.

        Args:
            epochs: completed epochs.
        """
        self._look()
        if self._of_file is not None:
            return self._of_file
        return [use for after, use in self._schedule if after <= epochs][-1]

    @property
    def source(self) -> str:
        """The source of the number of executors, for people: the file's name, or `executors.schedule`."""
        return (
            self._path.name if self._path is not None and self._of_file is not None else "executors.schedule"
        )

    def take_problem(self) -> str:
        """Return the error in the file, once for each problem; empty if there is none."""
        news = self._problem if self._problem != self._reported else ""
        self._reported = self._problem
        return news

    def _look(self) -> None:
        """Read the file, at most every `LOOK_INTERVAL_S`."""
        now_s = time.monotonic()
        if self._path is None or now_s < self._due_s:
            return
        self._due_s = now_s + LOOK_INTERVAL_S
        try:
            with open(self._path, encoding="utf-8", errors="replace", opener=regular_file) as file:
                text: str | None = file.read(MOST_CHARACTERS)
            self._problem = self._problem if text == self._text else ""
        except FileNotFoundError:
            text, self._problem = None, ""
        except OSError as error:
            text = self._text  # a file system that has a moment's trouble changes nothing
            self._problem = cannot_read(self._path, error)
        if text == self._text:
            return
        self._text = text
        if text is None:
            self._of_file = None
            return
        try:
            self._of_file = executors_of(text, self._executors)
        except InputError as error:
            self._problem = f"{self._path}: {error}; nothing changes"

    def _first(self, key: str, use: int | str) -> tuple[int, ...]:
        try:
            return executors_of(str(use), self._executors)
        except InputError as error:
            count = len(self._executors)
            raise InputError(
                f"{key}: got {use}, but the job has {count} executors; start more ranks"
            ) from error


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
