"""Find stragglers in trainer groups, and groups that balancing would make faster."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from hpcbal.events.ensemble import EpochDone, groups_started
from hpcbal.events.history import Straggler
from hpcbal.events.line import Line
from hpcbal.telemetry.streams.slices import Slice, mark
from hpcbal.telemetry.views.summary import GroupWork, balancing_would_save, find_straggler, group_work

WORTH_A_HINT = 0.15
"""Balancing is suggested if it would save at least this fraction of the time of the training steps..."""

EPOCHS_IN_A_ROW = 2
"""...in this many epochs in a row: the first epoch of a round traces the networks, and other load may end."""


@dataclass(slots=True)
class GroupWatch:
    """Checks each epoch of each group, and keeps its latest findings.

    Attributes:
        stragglers: the straggler of each DNN's group in its last epoch, by DNN.
        works: the work of its slots in that epoch, by DNN; only where samples differ in size.
    """

    stragglers: dict[str, Straggler] = field(default_factory=dict)
    works: dict[str, GroupWork] = field(default_factory=dict)
    _slots: dict[str, tuple[int, ...]] = field(default_factory=dict)  # the last ones, if a group has left
    _reported: set[tuple[str, int]] = field(default_factory=set)  # DNNs and slots they are faster without
    _uneven_epochs: dict[str, int] = field(default_factory=dict)  # in a row
    _has_advised: bool = False

    def handle(self, line: Line) -> None:
        """Record the slots of new groups."""
        for group in groups_started(line):
            if self._slots.get(group.dnn_id) != group.slots:
                self._uneven_epochs[group.dnn_id] = 0
            self._slots[group.dnn_id] = group.slots

    def completed(self, event: EpochDone) -> tuple[EpochDone, Sequence[str]]:
        """Find out which rank the group waited for in an epoch that has ended.

        Returns:
            The event with `balancing_would_save` and `straggler`, and notes for the user. Without `ranks` and
            `balance` in its facts nothing is found.
        """
        dnn_id, facts = event.dnn_id, event.facts
        if event.offered_slot is not None:  # the state machine is asked to leave it out, and reports that
            self._reported.add((dnn_id, event.offered_slot))
        notes = [] if facts.balance is None else self._offer(dnn_id, facts.balance.remove)
        self.stragglers.pop(dnn_id, None)
        self.works.pop(dnn_id, None)
        if facts.ranks is None:
            return event, notes
        saves = None
        if facts.balance is None:  # shares are even
            saves = balancing_would_save(facts.ranks)
            notes += self._advise(dnn_id, saves)
        straggler = find_straggler(facts.ranks, self._slots[dnn_id])
        if straggler is not None:
            self.stragglers[dnn_id] = straggler
        work = group_work([facts.ranks])
        if work is not None:
            self.works[dnn_id] = work
        return replace(event, balancing_would_save=saves, straggler=straggler), notes

    def mark(self, event: EpochDone) -> tuple[int, Slice] | None:
        """The timeline's mark for the straggler of a completed event.

        Returns: the slot whose track gets the mark (the group's first one, if the all-reduce was slow), and
            the mark; None if there was no straggler.
        """
        straggler = event.straggler
        if straggler is None:
            return None
        slot = self._slots[event.dnn_id][0] if straggler.slot is None else straggler.slot
        name = f"{event.dnn_id} waited {straggler.late_s:.3g} s in pass {event.pass_index}: {straggler.why}"
        return slot, mark(name, {"dnn": event.dnn_id, "why": straggler.why, "late_s": straggler.late_s})

    def _offer(self, dnn_id: str, rank: int | None) -> list[str]:
        """Warn once about a slot that should be left out but is not (`balance.regroup: false`)."""
        if rank is None or (dnn_id, self._slots[dnn_id][rank]) in self._reported:
            return []
        slot = self._slots[dnn_id][rank]
        self._reported.add((dnn_id, slot))
        return [f"warning: {dnn_id} would be faster without slot {slot} of its group"]

    def _advise(self, dnn_id: str, saves: float) -> list[str]:
        """Suggest balancing, once per start: what holds for one DNN usually holds for all on these slots."""
        in_a_row = self._uneven_epochs.get(dnn_id, 0) + 1 if saves >= WORTH_A_HINT else 0
        self._uneven_epochs[dnn_id] = in_a_row
        if self._has_advised or in_a_row < EPOCHS_IN_A_ROW:
            return []
        self._has_advised = True
        return [
            f"hint: the slots of {dnn_id} are not equally fast; with '--set dnns.{dnn_id}.balance=fitted' "
            f"training would take about {100 * saves:.0f} % less time; for all DNNs: '--set "
            "balance.policy=fitted' (docs/load-balancing.md)"
        ]
