"""The stages in which a rank comes into its role, in step with all other ranks."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from hpcbal.runtime.rank.context import RankContext
from hpcbal.runtime.rank.data import RankData
from hpcbal.runtime.resuming.opening import OpenedRun

if TYPE_CHECKING:
    from mpi4py import MPI


@dataclass(frozen=True, slots=True)
class Setting:
    """What a role is built from.

    Attributes:
        context: this rank.
        data: what it holds.
        peers: the ranks of the same role, in the order in which `Roles` counts them.
        data_comm: all ranks, for blocks that travel between nodes.
        opened: the run's files, on rank 0 only.
    """

    context: RankContext
    data: RankData
    peers: MPI.Intracomm
    data_comm: MPI.Intracomm
    opened: OpenedRun | None


class Recipe(ABC):
    """How one rank prepares for its role and plays it.

    All ranks pass through the stages together: an error for the user on one rank ends all ranks before the
    next stage. Work of a stage may be collective over the rank's peers as long as a failure holds up none.
    """

    def __init__(self, setting: Setting) -> None:
        self.setting = setting

    def prepare(self) -> str | None:
        """First stage: load what the role computes with.

        Returns: the name of the rank's device, None where the role needs none.
        """
        return None

    @abstractmethod
    def build(self, devices: Sequence[str | None]) -> None:
        """Second stage: build the role.

        Args:
            devices: what `prepare` returned, by rank.
        """

    @abstractmethod
    def play(self) -> int:
        """Last stage: work until the run ends; returns its exit code, the same on all ranks."""
