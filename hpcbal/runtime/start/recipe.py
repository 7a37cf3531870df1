"""The stages in which all ranks set up their roles, in step with each other, and the recipe of every role."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING

from hpcbal.cluster.roles import PREPROCESSOR, SCHEDULER, TRAINER
from hpcbal.config import EnsembleConfig
from hpcbal.runtime.rank.context import RankContext
from hpcbal.runtime.rank.data import RankData
from hpcbal.training.collectives import ChosenCollective, choose_collective

if TYPE_CHECKING:
    from mpi4py import MPI

    from hpcbal.runtime.resuming.opening import OpenedRun


@dataclass(frozen=True, slots=True)
class Setting:
    """The parts from which a role is built.

    Attributes:
        context: this rank's context.
        data: the data that this rank holds.
        peers: communicator of the ranks with the same role, in the order of `Roles`.
        data_comm: communicator of all ranks, for blocks that travel between nodes.
        unfinished: the DNNs that are still to be trained; by name, whether one has a checkpoint.
        joined: the DNNs that have joined the run; by name, the file that lists it.
        opened: the run's files, on rank 0 only.
    """

    context: RankContext
    data: RankData
    peers: MPI.Intracomm
    data_comm: MPI.Intracomm
    unfinished: Mapping[str, bool]
    joined: Mapping[str, str]
    opened: OpenedRun | None


@dataclass(frozen=True, slots=True)
class Prepared:
    """Findings of a rank that trains, from the first stage.

    Attributes:
        device: name of its device.
        fault: why it cannot sum gradients with Horovod; None if it can, or need not.
        distributed: the backend of torch.distributed for its device; None if it has none, or needs none.
    """

    device: str
    fault: str | None = None
    distributed: str | None = None


class Recipe(ABC):
    """Prepares one rank for its role, and runs the role.

    All ranks go through the stages together: a user's error on one rank ends all ranks before the next
    stage. The work of a stage may be collective over the rank's peers, but a failure of one must not block
    the others.
    """

    def __init__(self, setting: Setting) -> None:
        self.setting = setting

    @staticmethod
    def load_libraries(config: EnsembleConfig) -> None:
        """Before the first stage: load what takes long to import, while other ranks open the dataset.

        `prepare` reports what cannot be imported.
        """
        return

    def prepare(self) -> Prepared | None:
        """First stage: load the libraries that the role computes with; None if the role does not train."""
        return None

    def check(self) -> None:
        """Second stage: try what cannot be checked without these libraries."""
        return

    @abstractmethod
    def build(self, prepared: Sequence[Prepared | None]) -> None:
        """Third stage: build the role.

        Args:
            prepared: the results of `prepare`, by rank.
        """

    @abstractmethod
    def play(self) -> int:
        """Last stage: work until the run ends; returns its exit code, the same on all ranks."""


def collective_of(config: EnsembleConfig, prepared: Sequence[Prepared | None]) -> ChosenCollective:
    """Return what sums the gradients of this start, equally on all ranks.

    Args:
        prepared: the results of `Recipe.prepare`, by rank.
    """
    trainers = [rank for rank in prepared if rank is not None]
    return choose_collective(
        config.backend.effective_collective,
        [trainer.fault for trainer in trainers],
        [trainer.distributed for trainer in trainers],
    )


ROLES = (SCHEDULER, PREPROCESSOR, TRAINER)
"""The keys of `hpcbal.cluster.roles.Roles.ranks_by_role`; the order is the same on all ranks."""


def recipe_of(role: str) -> type[Recipe]:
    """Return the recipe of a role, from the module of its name."""
    found: type[Recipe] = import_module(f"hpcbal.runtime.start.{role}").RECIPE
    return found
