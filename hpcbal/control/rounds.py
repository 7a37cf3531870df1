"""Plan the rounds of the ensemble: new ones, interrupted ones, and when a round must end."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence

from hpcbal.cluster.layout import Cluster
from hpcbal.control.paradigms import PARADIGMS, View
from hpcbal.control.profiling import choose_unmeasured
from hpcbal.control.progress import ScheduleSettings
from hpcbal.events.ensemble import RoundPlan
from hpcbal.events.history import EpochRecord, Position
from hpcbal.policies.flotilla import FlotillaPlanner
from hpcbal.policies.preprocessors import num_preprocessors
from hpcbal.policies.rates import RateTable


class Planner:
    """Makes plans for one allocation, settings and rates; keeps no state."""

    def __init__(
        self,
        cluster: Cluster,
        settings: ScheduleSettings,
        rates: RateTable,
        flotillas: Callable[[], FlotillaPlanner],
        preprocessing_samples_per_s: float | None,
        left_out: Mapping[str, tuple[int, ...]] | None = None,
        built: Mapping[str, tuple[int, ...]] | None = None,
    ) -> None:
        self._cluster = cluster
        self._settings = settings
        self._paradigm = PARADIGMS[settings.paradigm]
        self._view = View(cluster, settings, rates, flotillas, left_out or {}, built or {})
        self._preprocessing_samples_per_s = preprocessing_samples_per_s

    def new_round(
        self,
        candidates: Sequence[str],
        *,
        index: int,
        first_pass: int,
        start: Mapping[str, Position],
        epochs_of: Callable[[str], int],
        last_pass: int | None = None,
        kept: Mapping[str, tuple[int, ...]] | None = None,
    ) -> RoundPlan:
        """Choose from `candidates` by the paradigm and place them.

        If it needs rates that are not known, choose DNNs without a rate for a round of one pass, see
        `choose_unmeasured`. A single slot leaves nothing to choose later, so the round goes on.

        Args:
            candidates: DNNs that may be chosen, at least one.
            index, first_pass, last_pass: fields of the plan.
            start: where DNNs start that were stopped inside `first_pass`; the others start at its beginning.
            epochs_of: returns the completed epochs of a candidate.
            kept: slots of candidates that a paradigm may leave in place.

        Source: [FLEET] Alg. 1, lines 4 and 5.
        """
        rates = self._view.rates
        if self._paradigm.needs_rates and not all(rates.is_measured(d, 1) for d in candidates):
            choice = choose_unmeasured(self._view, candidates, self._view.built)
            last_pass = first_pass if self._cluster.num_slots > 1 else last_pass
        else:
            choice = self._paradigm.choose(self._view, candidates, kept or {})
        chosen = [group.dnn_id for group in choice.groups]
        beginning = Position(first_pass)
        return RoundPlan(
            index=index,
            groups=choice.groups,
            first_pass=first_pass,
            start={d: start.get(d, beginning) for d in chosen},
            epochs={d: epochs_of(d) for d in chosen},
            num_preprocessors=self.num_preprocessors([choice.rates.get(d) for d in chosen]),
            predicted_rate_samples_per_s=choice.rates,
            num_slots=choice.num_slots,
            last_pass=last_pass,
        )

    def num_preprocessors(self, rates_samples_per_s: Sequence[float | None]) -> int:
        """Number of preprocessors for groups with these rates; all of them while any rate is unknown."""
        known = [rate for rate in rates_samples_per_s if rate is not None]
        if self._preprocessing_samples_per_s is None or len(known) < len(rates_samples_per_s):
            return self._settings.max_preprocessors
        return num_preprocessors(
            max(known), self._preprocessing_samples_per_s, self._settings.max_preprocessors
        )

    def must_regroup(
        self, going_on: Mapping[str, int], num_slots_of_round: int, candidates: Callable[[], Sequence[str]]
    ) -> bool:
        """Whether a round ends, because no DNN continues or because the paradigm says so.

        Args:
            going_on: slots of the DNNs that would continue.
            num_slots_of_round: slots of the flotilla when the round was formed.
            candidates: returns the DNNs that could be in the next flotilla, in order; includes all of
                `going_on`.
        """
        if not going_on:
            return True
        return self._paradigm.must_regroup(self._view, going_on, num_slots_of_round, candidates)


def num_slots_of(plan: RoundPlan) -> int:
    """M in the rule of alpha: the slots of the flotilla when the round was formed."""
    return plan.num_slots or sum(len(group.slots) for group in plan.groups)


def fits(plan: RoundPlan | None, made_for: Cluster | None, cluster: Cluster) -> bool:
    """Whether a plan made for one allocation can run unchanged on another.

    Nodes may have other names, but must have the same numbers of slots in the same order, so that the plan's
    placement has the same meaning.
    """
    if plan is None or not is_alike(made_for, cluster):
        return False
    return all(slot < cluster.num_slots for group in plan.groups for slot in group.slots)


def is_alike(made_for: Cluster | None, cluster: Cluster) -> bool:
    """Whether slot numbers of one allocation (None: like the other) mean the same places on another."""
    return made_for is None or _slots_per_node(made_for) == _slots_per_node(cluster)


def is_same(made_for: Cluster | None, cluster: Cluster) -> bool:
    """Whether slot numbers of one allocation (None: like the other) mean the same slots on another.

    The host names decide: what is known about one slot does not apply to a slot of another machine.
    """
    return made_for is None or made_for == cluster


def is_short(
    slots: Mapping[str, Collection[int]], left_out: Mapping[str, Collection[int]], live_ids: Collection[str]
) -> bool:
    """Whether a live DNN, given these slots, would lack a slot that it goes on without.

    A group that was formed before the slot was left out still has it, so it lacks nothing.

    Args:
        slots: slots of each DNN's group.
        left_out: slots per DNN that it goes on without.
        live_ids: DNNs that are neither done nor failed.
    """
    return any(not set(left_out.get(d, ())) <= set(own) for d, own in slots.items() if d in live_ids)


def slots_of(plan: RoundPlan | None) -> dict[str, tuple[int, ...]]:
    """Slots by DNN of the round, if there is one."""
    return {} if plan is None else {group.dnn_id: group.slots for group in plan.groups}


def is_inside_pass(position: Position | None, num_positions: int) -> bool:
    """Whether a DNN at `position` has begun a pass and not finished it."""
    return position is not None and 0 < position.offset < num_positions


def has_unfinished_pass_before(planned_pass: int, stopped: Position | None, num_positions: int) -> bool:
    """Whether a DNN of an interrupted round must first finish a pass from before that round.

    This happens when the round's checkpoints are damaged and the one used instead was written by an earlier
    suspension.
    """
    if stopped is None or not is_inside_pass(stopped, num_positions):
        return False
    return stopped.pass_index < planned_pass


def next_position(
    planned_pass: int, stopped: Position | None, history: Sequence[EpochRecord], num_positions: int
) -> Position:
    """Where a DNN of an interrupted round continues: the furthest point that is certain.

    Args:
        planned_pass: the pass with which it began in that round. It is at the beginning of that pass if no
            checkpoint was written since, or only a damaged one.
        stopped: the position of its checkpoint; a checkpoint from before the round is behind `planned_pass`.
        history: its completed epochs; it has trained all of the last one's pass.
        num_positions: samples of one pass.

    Returns: a position to train from; the end of a pass is returned as the beginning of the next one.
    """
    known = [Position(planned_pass)]
    if stopped is not None:
        known.append(stopped if stopped.offset < num_positions else Position(stopped.pass_index + 1))
    if history:
        known.append(Position(history[-1].pass_index + 1))
    return max(known, key=lambda p: (p.pass_index, p.offset))


def start_of(position: Position, first_pass: int, num_positions: int) -> Position:
    """`RoundPlan.start` of a DNN that continues at `position` in a round that begins with `first_pass`.

    A DNN that is ahead of the round, between two passes, waits at the end of the pass that it finished.
    """
    if position.pass_index == first_pass or position.offset > 0:
        return position
    return Position(position.pass_index - 1, num_positions)


def _slots_per_node(cluster: Cluster) -> tuple[int, ...]:
    return tuple(node.num_slots for node in cluster.nodes)
