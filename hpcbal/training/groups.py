"""What a trainer asks of the groups that are formed and dissolved with the rounds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from hpcbal.comm.group_comm import GroupComm
from hpcbal.training.collective import GradientCollective


class TrainerGroups(Protocol):
    """The current trainer groups. A group is a tuple of ranks of the trainer communicator.

    The first rank of a group is its master: rank 0 of its collective and of its communicator.
    """

    def open(self, groups: Sequence[tuple[int, ...]]) -> None:
        """Close the earlier groups and form these; collective over ALL trainers.

        Args:
            groups: the same on all trainers, also on those in no group; no rank occurs twice.
        """

    def comm_of(self, group: tuple[int, ...]) -> GroupComm:
        """The group's small collectives; only for its members."""

    def collective_of(self, group: tuple[int, ...]) -> GradientCollective:
        """The collective that sums the group's gradients; only for its members."""

    def close_all(self) -> None:
        """Dissolve the groups; collective over ALL trainers."""

    def shutdown(self) -> None:
        """Dissolve the groups and end the library; collective over ALL trainers, once."""


def check_groups(groups: Sequence[tuple[int, ...]], num_trainers: int) -> None:
    """Refuse groups that overlap or hold ranks that do not exist.

    Raises:
        ValueError: names the groups; they come from our own plan, so this is a bug of ours.
    """
    members = [rank for group in groups for rank in group]
    if not all(groups) or len(set(members)) != len(members) or not set(members) <= set(range(num_trainers)):
        raise ValueError(
            f"trainer groups {list(groups)}: each of 0..{num_trainers - 1} at most once, none empty"
        )
