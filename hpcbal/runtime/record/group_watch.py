"""What the epochs of trainer groups tell of their ranks: who holds up whom, and what balancing would save."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from hpcbal.control.messages import EpochDone, GroupPlan
from hpcbal.telemetry.ledger import EpochFacts, Straggler
from hpcbal.telemetry.streams.slices import Slice, mark
from hpcbal.telemetry.views.straggler import balancing_would_save, find_straggler

WORTH_TELLING = 0.15
"""Even shares on unlike GPUs are pointed out when others would save this much of the training steps..."""

EPOCHS_IN_A_ROW = 2
"""...so often: the first epoch of a round traces the networks, and a burst of other load passes."""


@dataclass(frozen=True, slots=True)
class Findings:
    """What an epoch's ranks show.

    Attributes:
        notes: for people.
        balancing_would_save, straggler: as in `EpochDoneLine`.
    """

    notes: Sequence[str] = ()
    balancing_would_save: float | None = None
    straggler: Straggler | None = None


@dataclass(slots=True)
class GroupWatch:
    """Looks at each epoch of each group; keeps what was seen last.

    Attributes:
        stragglers: by DNN, whom its group waited for in its last epoch.
    """

    stragglers: dict[str, Straggler] = field(default_factory=dict)
    _gpus: dict[str, tuple[int, ...]] = field(default_factory=dict)  # the last ones, if a group has left
    _told: set[tuple[str, int]] = field(default_factory=set)  # GPUs that DNNs would do without
    _uneven_epochs: dict[str, int] = field(default_factory=dict)  # in a row; -1: has been told

    def join(self, groups: Iterable[GroupPlan]) -> None:
        """Groups are formed."""
        for group in groups:
            if self._gpus.get(group.dnn_id) != group.gpus:
                self._uneven_epochs[group.dnn_id] = min(0, self._uneven_epochs.get(group.dnn_id, 0))
            self._gpus[group.dnn_id] = group.gpus

    def note_offer(self, dnn_id: str, gpu: int) -> None:
        """The state machine is asked to leave a GPU out, and will tell."""
        self._told.add((dnn_id, gpu))

    def look(self, dnn_id: str, facts: EpochFacts) -> Findings:
        """Who held up the group in an epoch that has ended.

        Args:
            facts: as the group's master reports them; without `ranks` and `balance` nothing is found.
        """
        notes = [] if facts.balance is None else self._offer(dnn_id, facts.balance.remove)
        self.stragglers.pop(dnn_id, None)
        if facts.ranks is None:
            return Findings(notes)
        saves = None
        if facts.balance is None:  # shares are even
            saves = balancing_would_save(facts.ranks)
            notes += self._advise(dnn_id, saves)
        straggler = find_straggler(facts.ranks, self._gpus[dnn_id])
        if straggler is not None:
            self.stragglers[dnn_id] = straggler
        return Findings(notes, saves, straggler)

    def mark(self, event: EpochDone) -> tuple[int, Slice] | None:
        """For the timeline, who held up the group in the epoch that was looked at last.

        Returns: the GPU on whose track it belongs (the group's first one, if the sums held it up), and the
            mark; None if nobody did.
        """
        straggler = self.stragglers.get(event.dnn_id)
        if straggler is None:
            return None
        gpu = self._gpus[event.dnn_id][0] if straggler.gpu is None else straggler.gpu
        name = f"{event.dnn_id} waited {straggler.late_s:.3g} s in pass {event.pass_index}: {straggler.why}"
        return gpu, mark(name, {"dnn": event.dnn_id, "why": straggler.why, "late_s": straggler.late_s})

    def _offer(self, dnn_id: str, rank: int | None) -> list[str]:
        """What nobody is asked to do (`balance.regroup: false`) is told once."""
        if rank is None or (dnn_id, self._gpus[dnn_id][rank]) in self._told:
            return []
        gpu = self._gpus[dnn_id][rank]
        self._told.add((dnn_id, gpu))
        return [f"warning: {dnn_id} would be faster without GPU {gpu} of its group"]

    def _advise(self, dnn_id: str, saves: float) -> list[str]:
        """Once per DNN."""
        in_a_row = self._uneven_epochs.get(dnn_id, 0)
        if in_a_row < 0:
            return []
        in_a_row = in_a_row + 1 if saves >= WORTH_TELLING else 0
        self._uneven_epochs[dnn_id] = in_a_row if in_a_row < EPOCHS_IN_A_ROW else -1
        if in_a_row < EPOCHS_IN_A_ROW:
            return []
        return [
            f"hint: the GPUs of {dnn_id} are not equally fast; with '--set dnns.{dnn_id}.balance=fitted' it "
            f"would train some {saves:.0%} shorter (docs/load-balancing.md)"
        ]
