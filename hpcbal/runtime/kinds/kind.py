"""The interface of a kind of run, for the launcher and the ranks."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

from hpcbal.config import RunConfig
from hpcbal.runtime.handoff.launch_dir import RunRequest
from hpcbal.telemetry.files.run_directory import RunDirectory
from hpcbal.telemetry.views.results import ResultRow

if TYPE_CHECKING:  # `hpcbal run` in a plain shell asks a kind too, and must not load MPI
    from mpi4py import MPI

    from hpcbal.cluster.roles import Roles
    from hpcbal.runtime.rank.context import LiveRank

C = TypeVar("C", bound=RunConfig)


class Opened(Protocol):
    """A run whose directory rank 0 holds."""

    @property
    def config(self) -> RunConfig:
        """Return the configuration with which the run goes on."""

    @property
    def run(self) -> RunDirectory:
        """Return the directory."""

    def close(self) -> None:
        """Give the directory back."""


OpenedT = TypeVar("OpenedT", bound=Opened)


@dataclass(frozen=True, slots=True)
class RankWorld:
    """The communicators of a rank: all ranks, and those of its node."""

    all: MPI.Intracomm
    node: MPI.Intracomm


class KindRuns(ABC, Generic[C, OpenedT]):
    """How runs of one kind start and go. Only what runs on ranks loads MPI."""

    @abstractmethod
    def requested(self, request: RunRequest, config: C) -> C:
        """Return the configuration of a start, from what its file says.

        Raises:
            InputError: if the request asks for something that this kind cannot do.
        """

    def with_submitted(self, config: C, run: RunDirectory) -> C:
        """Return the configuration with all that was submitted to a run.

        Raises:
            HpcbalError: if that cannot be read.
        """
        return config

    @abstractmethod
    def num_ranks(self, config: C, num_gpus: int, num_cores: int) -> int:
        """Return the number of ranks to start on this machine, which has so many GPUs and cores."""

    @abstractmethod
    def num_busy_ranks(self, config: C, ranks: int) -> int:
        """Return how many of the ranks on this machine compute; emulated ones sleep for most of a step."""

    def is_kept(self, run: RunDirectory, config: C, rows: Sequence[ResultRow]) -> bool:
        """Return whether all that a finished run has trained is still in its directory.

        Args:
            run: the directory.
            config: the configuration of this start.
            rows: the results.
        """
        return True

    @abstractmethod
    def open(self, request: RunRequest, config: C) -> OpenedT:
        """Open or create the run's directory, on rank 0.

        Raises:
            HpcbalError: if the run cannot go on in it.
        """

    @abstractmethod
    def roles(self, world: RankWorld, config: C) -> Roles:
        """Return who does what; collective.

        Raises:
            ClusterError: if there are too few ranks.
        """

    @abstractmethod
    def play(
        self, world: RankWorld, rank: LiveRank, request: RunRequest, opened: OpenedT | None, last: ExitStack
    ) -> int:
        """Play the role of this rank; collective. Returns the exit code, the same on all ranks.

        Args:
            world: the ranks.
            rank: this rank; it knows the configuration.
            request: the request of this start.
            opened: the run, on rank 0 only.
            last: gets what is to be closed once all ranks have agreed to leave.
        """


def refusal_of_operations(path: Path, kind: str, what: str, instead: str = "") -> str:
    """Return why the operations of a run are not recorded.

    Args:
        path: the file.
        kind: kind of the run.
        what: what operations are recorded of.
        instead: what to do, after a semicolon.
    """
    return (
        f"{path}: kind: got {kind}, allowed with --operations: paramserver; it records the operations of "
        f"{what}{instead}"
    )
