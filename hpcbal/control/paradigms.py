"""The paradigms that train DNNs in rounds: which DNNs are in the next round, and when it ends."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from hpcbal.cluster.layout import Cluster
from hpcbal.control.progress import ScheduleSettings
from hpcbal.events.ensemble import ELASTIC, INDEPENDENT, WITHOUT_ROUNDS, GroupPlan
from hpcbal.policies.flotilla import Flotilla, FlotillaPlanner
from hpcbal.policies.folds import random_order
from hpcbal.policies.placement import assign_slots_roughly
from hpcbal.policies.rates import RateTable
from hpcbal.policies.staying import assign_slots_staying, avoid_left_out, free_where_built, without_left_out

ROUNDING = 1e-9
"""Slack for alpha * M: the product may be slightly above the intended whole number (0.55 * 100)."""


@dataclass(frozen=True, slots=True)
class View:
    """The facts from which a paradigm decides.

    Attributes:
        flotillas: returns the planner of flotillas for the rates of now.
        left_out: slots per DNN that it trains faster without.
        built: slots whose ranks hold the network of a DNN, built and traced, by DNN.
    """

    cluster: Cluster
    settings: ScheduleSettings
    rates: RateTable
    flotillas: Callable[[], FlotillaPlanner]
    left_out: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    built: Mapping[str, tuple[int, ...]] = field(default_factory=dict)

    def flotilla(self, candidates: Sequence[str], num_slots: int) -> Flotilla:
        """The flotilla that [FLEET] Alg. 2 forms from `candidates` (at least one) for `num_slots` slots."""
        return self.flotillas().flotilla(candidates, num_slots)

    def placed(
        self, flotilla: Flotilla, slots: Sequence[int], kept: Mapping[str, tuple[int, ...]] | None = None
    ) -> Choice:
        """Place the flotilla on `slots` (ascending); a DNN may get fewer slots than planned, to avoid some.

        A DNN in `kept` stays on its slots listed there, and any other goes where it is built, where that
        makes no placement worse.
        """
        index_of = {slot: j for j, slot in enumerate(slots)}
        had: dict[str, Sequence[int]] = {
            d: [index_of[slot] for slot in own if slot in index_of and slot not in self.left_out.get(d, ())]
            for d, own in (kept or {}).items()
        }
        moving = {
            d: m for d, m in zip(flotilla.dnn_ids, flotilla.num_slots, strict=True) if len(had.get(d, ())) < m
        }
        built = {d: [index_of[slot] for slot in own if slot in index_of] for d, own in self.built.items()}
        staying = [j for d in flotilla.dnn_ids if d not in moving for j in had[d]]
        had |= free_where_built(moving, built, staying)
        place = assign_slots_roughly if self.settings.rough_placement else assign_slots_staying
        placed = place(flotilla, self.cluster.part(slots), had).slots
        by_dnn = {d: tuple(slots[j] for j in placed[d]) for d in flotilla.dnn_ids}
        free = set(slots).difference(*by_dnn.values())
        by_dnn = avoid_left_out(by_dnn, self.left_out, free, self.cluster.node_of_slots())
        rates = dict(zip(flotilla.dnn_ids, flotilla.rates, strict=True))
        for dnn_id, planned in zip(flotilla.dnn_ids, flotilla.num_slots, strict=True):
            if len(by_dnn[dnn_id]) < planned:
                rates[dnn_id] = self.rates.rate(dnn_id, len(by_dnn[dnn_id]))
        return Choice(tuple(GroupPlan(d, own) for d, own in by_dnn.items()), rates)


@dataclass(frozen=True, slots=True)
class Choice:
    """The trainer groups of a round, and each DNN's rate (samples/s) where it is known."""

    groups: tuple[GroupPlan, ...]
    rates: Mapping[str, float]

    @property
    def num_slots(self) -> int:
        return sum(len(group.slots) for group in self.groups)


class Paradigm(Protocol):
    """How DNNs are put into rounds.

    Attributes:
        needs_rates: whether it decides by training rates, so that these must be profiled first.
        is_random: whether it depends on the seed.
        has_alpha: whether alpha decides when a round ends.
    """

    needs_rates: bool
    is_random: bool
    has_alpha: bool

    def choose(self, view: View, candidates: Sequence[str], kept: Mapping[str, tuple[int, ...]]) -> Choice:
        """Choose the groups of the next round.

        Args:
            candidates: DNNs that are not done, in the order of the config, at least one.
            kept: slots of the candidates that were in training when the last round ended.
        """

    def must_regroup(
        self,
        view: View,
        going_on: Mapping[str, int],
        num_slots_of_round: int,
        candidates: Callable[[], Sequence[str]],
    ) -> bool:
        """Whether a round ends at the end of a pass.

        Args:
            going_on: slots of the DNNs that would continue, at least one.
            num_slots_of_round: slots of the round when it was formed.
            candidates: returns the DNNs that could be in the next round, in order; includes all of
                `going_on`. Most passes are decided without them.
        """

    def foreseen(self, view: View, candidates: Sequence[str]) -> list[Flotilla]:
        """Foresee the flotillas of a run that begins, if the DNNs of each converge together.

        Args:
            candidates: all DNNs, at least one.
        """


class Global:
    """FLEET-G: every round is a new flotilla from all remaining DNNs ([FLEET] Alg. 1)."""

    needs_rates = True
    is_random = False
    has_alpha = True

    def choose(self, view: View, candidates: Sequence[str], kept: Mapping[str, tuple[int, ...]]) -> Choice:
        """A flotilla of any candidates on all slots; DNNs that can stay in place at no cost do so.

        Source: [FLEET] Alg. 1, lines 4 and 5, which places every flotilla anew.
        """
        num_slots = view.cluster.num_slots
        return view.placed(view.flotilla(candidates, num_slots), range(num_slots), kept)

    def must_regroup(
        self,
        view: View,
        going_on: Mapping[str, int],
        num_slots_of_round: int,
        candidates: Callable[[], Sequence[str]],
    ) -> bool:
        """Whether too few of the round's slots stay busy.

        Source: [FLEET] Sec. 4.3.2, "Training". Deviations: alpha refers to the slots that the flotilla was
            given, not to all M, because a flotilla limited by `max_slots_per_dnn` could never keep all M
            busy; and a round does not end if the next flotilla would be the same DNNs with the same numbers
            of slots, because stopping and starting would change nothing.
        """
        alpha = view.settings.alpha
        assert alpha is not None, "a schedule with this paradigm has an alpha"
        if sum(going_on.values()) >= alpha * num_slots_of_round - ROUNDING:
            return False
        if view.left_out:  # a DNN may get fewer slots than its flotilla wants: only placement decides
            chosen = self.choose(view, candidates(), {}).groups
            return {group.dnn_id: len(group.slots) for group in chosen} != dict(going_on)
        flotilla = view.flotilla(candidates(), view.cluster.num_slots)
        return dict(zip(flotilla.dnn_ids, flotilla.num_slots, strict=True)) != dict(going_on)

    def foreseen(self, view: View, candidates: Sequence[str]) -> list[Flotilla]:
        """All of them."""
        return view.flotillas().all_flotillas(candidates, view.cluster.num_slots)


class Local:
    """FLEET-L: free slots are refilled at once by the same greedy rule, while the other DNNs train on."""

    needs_rates = True
    is_random = False
    has_alpha = False

    def choose(self, view: View, candidates: Sequence[str], kept: Mapping[str, tuple[int, ...]]) -> Choice:
        """DNNs in training stay on their slots; a flotilla of the others gets the remaining slots.

        Source: [FLEET] Sec. 4.3.3; Sec. 6.1: "only locally (for the newly released GPUs)". The flotilla of
            the newcomers has its own reference rate, the rate of the fastest of them.
        """
        staying = tuple(
            GroupPlan(d, without_left_out(kept[d], view.left_out.get(d, ()))) for d in candidates if d in kept
        )
        taken = {slot for group in staying for slot in group.slots}
        free = [slot for slot in range(view.cluster.num_slots) if slot not in taken]
        others = [d for d in candidates if d not in kept]
        rates = {group.dnn_id: view.rates.rate(group.dnn_id, len(group.slots)) for group in staying}
        if not (free and others):
            return Choice(staying, rates)
        new = view.placed(view.flotilla(others, len(free)), free)
        return Choice(staying + new.groups, {**rates, **new.rates})

    def must_regroup(
        self,
        view: View,
        going_on: Mapping[str, int],
        num_slots_of_round: int,
        candidates: Callable[[], Sequence[str]],
    ) -> bool:
        """Whether a slot was released and a DNN waits for one."""
        return sum(going_on.values()) < num_slots_of_round and len(candidates()) > len(going_on)

    def foreseen(self, view: View, candidates: Sequence[str]) -> list[Flotilla]:
        """The first one; then it depends on the DNN that leaves first."""
        return [view.flotilla(candidates, view.cluster.num_slots)]


class Homogeneous:
    """Random subsets, one slot each, on shared data; the next subset follows when all of one are done.

    Source: [PITTMAN], as [FLEET] Sec. 6.1 describes it.
    """

    needs_rates = False
    is_random = True
    has_alpha = False

    def choose(self, view: View, candidates: Sequence[str], kept: Mapping[str, tuple[int, ...]]) -> Choice:
        """As many DNNs as there are slots, taken from a random order that is fixed for the run."""
        chosen = self._subsets(view, candidates)[0]
        rates = {d: view.rates.rate(d, 1) for d in chosen if view.rates.is_measured(d, 1)}
        return Choice(tuple(GroupPlan(d, (slot,)) for slot, d in enumerate(chosen)), rates)

    def must_regroup(
        self,
        view: View,
        going_on: Mapping[str, int],
        num_slots_of_round: int,
        candidates: Callable[[], Sequence[str]],
    ) -> bool:
        """Never: the others wait for the last DNN of the subset."""
        return False

    def foreseen(self, view: View, candidates: Sequence[str]) -> list[Flotilla]:
        """All subsets."""
        return [one_slot_each(subset, view.rates) for subset in self._subsets(view, candidates)]

    def _subsets(self, view: View, candidates: Sequence[str]) -> list[tuple[str, ...]]:
        order, size = random_order(candidates, view.settings.seed), view.cluster.num_slots
        return [order[first : first + size] for first in range(0, len(order), size)]


def one_slot_each(dnn_ids: tuple[str, ...], rates: RateTable) -> Flotilla:
    """Make a flotilla of DNNs whose rates on one slot are known."""
    return started_with([(dnn_id, 1) for dnn_id in dnn_ids], rates)


def started_with(groups: Sequence[tuple[str, int]], rates: RateTable) -> Flotilla:
    """Make a flotilla of DNNs with these numbers of slots, whose rates are known."""
    dnn_ids, counts = tuple(name for name, _ in groups), tuple(count for _, count in groups)
    together = tuple(rates.rate(name, count) for name, count in groups)
    return Flotilla(dnn_ids, counts, together, together, max(rates.rate(name, 1) for name in dnn_ids))


PARADIGMS: Mapping[str, Paradigm] = {"global": Global(), "local": Local(), "homogeneous": Homogeneous()}
"""By their names in `schedule.paradigm`, those with rounds."""

PARADIGM_NAMES = (*PARADIGMS, *WITHOUT_ROUNDS)

AUTO = "auto"
"""The value of `schedule.paradigm` that leaves the choice to hpcbal."""


def needs_rates(paradigm: str) -> bool:
    """Whether a paradigm, or the choice of one, needs training rates."""
    return paradigm in (AUTO, ELASTIC) or (paradigm != INDEPENDENT and PARADIGMS[paradigm].needs_rates)


def is_random(paradigm: str) -> bool:
    """Whether the seed may change what a paradigm decides."""
    return paradigm in (AUTO, INDEPENDENT) or (paradigm != ELASTIC and PARADIGMS[paradigm].is_random)
