"""Paradigms without rounds: each DNN trains its own passes at its own pace, on slots of its own.

With `elastic`, free slots go to the DNNs that need them most: to one that waits, or to one that has ended a
pass and can grow. Nobody else waits for that, and no DNN gives slots back before its end. With `independent`,
each DNN keeps one slot to its end.

A group that grows is formed again: it writes a checkpoint, leaves, and starts on its new slots, which are
reserved for it meanwhile. The cost of that is measured: a DNN grows only if it gains more time than it loses.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from hpcbal.control.progress import ScheduleSettings, evaluate
from hpcbal.control.pruning import prune_at_pass_end, prune_between_rounds
from hpcbal.control.state import Dnn, Group
from hpcbal.control.states import STATE_WHEN_SAVED, DnnState, Leaving, Phase
from hpcbal.control.stopping import ask, stop_at_pass_end, stop_waiting
from hpcbal.events.ensemble import (
    EpochDone,
    GroupPlan,
    Instruction,
    LeaveOut,
    NextPass,
    RoundPlan,
    StartGroup,
)
from hpcbal.events.history import Position
from hpcbal.events.members import DnnSpec
from hpcbal.policies.elastic import Ladder, Lengths, Need, choose_slots, share_slots
from hpcbal.policies.folds import order_alone, random_order
from hpcbal.policies.rates import RateTable

if TYPE_CHECKING:
    from hpcbal.control.ensemble import Ensemble

ASSUMED_CHANGE_S = 1.0
"""Cost of a change of a group, as long as the start of the DNN was not measured."""

Slots = tuple[int, ...]


# ---- free slots: who starts on them ------------------------------------------------------------


def fill_slots(ensemble: Ensemble) -> list[Instruction]:
    """Give free slots to the DNNs that wait; finish when no DNN is left."""
    s = ensemble.state
    instructions: list[Instruction] = []
    if s.suspend_reason:
        s.reserved.clear()
    else:
        stop_waiting(ensemble)
        for name in [d for d in s.reserved if s.dnns[d].state is DnnState.WAITING]:
            instructions.append(_start(ensemble, s.dnns[name], s.reserved.pop(name)))
        prune_between_rounds(ensemble)
        fill = _fill_by_shares if _is_shared(ensemble) else _fill_one_by_one
        instructions += fill(ensemble, _free_slots(ensemble))
        if not any(s.dnns[name].state is DnnState.WAITING for name in s.candidate_ids()):
            instructions += ask(ensemble, len(_free_slots(ensemble)))
    if s.groups:
        return instructions
    if s.num_asked and not s.suspend_reason:
        s.phase = Phase.CHOOSING
        return instructions
    return ensemble.finish()


def _free_slots(ensemble: Ensemble) -> list[int]:
    s = ensemble.state
    taken = {slot for group in s.groups.values() for slot in group.slots}
    taken.update(*s.reserved.values())
    return [slot for slot in range(ensemble.cluster.num_slots) if slot not in taken]


def _is_shared(ensemble: Ensemble) -> bool:
    """Whether slots are shared out by what DNNs need, which takes all rates and DNNs that nobody pauses."""
    s = ensemble.state
    is_elastic = not ensemble.is_independent and ensemble.settings.prune is None
    return is_elastic and all(s.rates.is_measured(d, 1) for d in s.live)


def _fill_by_shares(ensemble: Ensemble, free: list[int]) -> list[Instruction]:
    """Start DNNs with the slots that they should have; those that need longest come first."""
    s = ensemble.state
    waiting = {d for d in s.live if s.dnns[d].state is DnnState.WAITING and d not in s.reserved}
    if not (free and waiting):
        return []
    instructions: list[Instruction] = []

    def usable(name: str) -> list[int]:
        return _usable(ensemble, name, free) or free

    def held(name: str) -> tuple[int, float]:
        build_s = s.start_s.get((name, True), 0.0)
        return len(set(free) & set(s.built.get(name, ()))) if build_s else 0, build_s

    needs, num_slots = _needs(ensemble), ensemble.cluster.num_slots
    for name, number in _next_groups(needs, waiting, num_slots, lambda name: len(usable(name)), held):
        slots = _choose(ensemble, name, number, (), usable(name))
        free = [slot for slot in free if slot not in slots]
        instructions.append(_start(ensemble, s.dnns[name], slots))
    return instructions


def first_groups(
    specs: Sequence[DnnSpec], ladders: Mapping[str, Ladder], settings: ScheduleSettings, num_slots: int
) -> list[tuple[str, int]]:
    """The DNNs that start first in a fresh run, and their numbers of slots."""
    lengths = Lengths((), 0)
    needs = {
        spec.dnn_id: Need(_epochs_left(spec, 0, lengths) * settings.num_positions, ladders[spec.dnn_id])
        for spec in specs
    }
    groups: list[tuple[str, int]] = []

    def num_free(_: str) -> int:
        return num_slots - sum(number for _, number in groups)

    for name, number in _next_groups(needs, needs.keys(), num_slots, num_free):
        groups.append((name, number))
    return groups


def _next_groups(
    needs: Mapping[str, Need],
    waiting: Collection[str],
    num_slots: int,
    num_usable: Callable[[str], int],
    held: Callable[[str], tuple[int, float]] = lambda _: (0, 0.0),
) -> Iterator[tuple[str, int]]:
    """Yield the DNNs of `waiting` that get free slots, and how many.

    Those that need longest come first. But a DNN whose network is built on free slots comes before one that
    needs longer by no more than the time to build it: it would have to be built again elsewhere.

    Args:
        num_usable: free slots that a DNN may have, when its turn comes: the caller has taken those of the
            DNNs before it.
        held: number of the free slots whose ranks hold the network of a DNN, and seconds to build it.
    """
    shares = share_slots(needs, num_slots)
    left = [name for name in shares if name in waiting]

    def number(name: str) -> int:
        return needs[name].ladder.within(min(max(1, shares[name]), num_usable(name)))

    while left and num_usable(left[0]):
        longest_s = needs[left[0]].seconds(number(left[0]))
        name = left[0]
        for each in left:
            num_held, build_s = held(each)
            most = number(each) if num_held else 0
            if 0 < most <= num_held and needs[each].seconds(most) + build_s >= longest_s:
                name = each
                break
        left.remove(name)
        yield name, number(name)


def _fill_one_by_one(ensemble: Ensemble, free: list[int]) -> list[Instruction]:
    """Give each DNN one slot, one where its network is built if such a slot is free.

    DNNs that an earlier start began come first. If the rates of all DNNs on one slot are known, the next ones
    are those that need the longest to `max_epochs`, so that no long one is left when the other slots are
    idle. Otherwise the order is random. Either order is fixed for the run, and the same after a resume.

    Source: [FLEET] Sec. 6.1, "Baseline": a GPU randomly picks one yet-to-be-trained DNN whenever it becomes
        free until there are no DNN left. Deviation: the longest one if rates are known.
    """
    instructions: list[Instruction] = []
    while free and (dnn := _next_dnn(ensemble)) is not None:
        built = ensemble.state.built.get(dnn.spec.dnn_id, ())
        slot = next((slot for slot in free if slot in built), free[0])
        free.remove(slot)
        instructions.append(_start(ensemble, dnn, (slot,)))
    return instructions


def first_order(
    epochs_left: Mapping[str, int], rates: RateTable, settings: ScheduleSettings
) -> tuple[str, ...]:
    """Order DNNs that were not trained yet; a pruning rule compares DNNs that start in a random order."""
    if settings.prune is not None:
        return random_order(list(epochs_left), settings.seed)
    return order_alone(epochs_left, rates, settings.seed)


def _next_dnn(ensemble: Ensemble) -> Dnn | None:
    """The DNN that gets the next free slot.

    With a pruning rule, DNNs that it had paused and now promotes come first, those with most epochs before
    the others ([ASHA] Alg. 2, get_job).
    """
    if ensemble.settings.prune is None:
        waiting = ensemble.waiting_alone()
        return waiting.popleft() if waiting else None
    s = ensemble.state
    ready = [d for d in s.candidate_ids() if s.dnns[d].state is DnnState.WAITING]
    rank = {dnn_id: i for i, dnn_id in enumerate(random_order(list(s.dnns), ensemble.settings.seed))}
    ready.sort(key=lambda d: (s.dnns[d].position is None, -s.dnns[d].epochs, rank[d]))
    return s.dnns[ready[0]] if ready else None


def _start(ensemble: Ensemble, dnn: Dnn, slots: Slots) -> StartGroup:
    s, name = ensemble.state, dnn.spec.dnn_id
    position = _position(dnn, ensemble.settings.num_positions)
    rates = {name: s.rates.rate(name, len(slots))} if s.rates.is_measured(name, 1) else {}
    plan = ensemble.measuring(
        RoundPlan(
            index=s.next_round_index,
            groups=(GroupPlan(name, slots),),
            first_pass=position.pass_index,
            start={name: position},
            epochs={name: dnn.epochs},
            num_preprocessors=len(slots),
            predicted_rate_samples_per_s=rates,
            num_slots=len(slots),
        )
    )
    ensemble.move(dnn, DnnState.RUNNING)
    dnn.position = None
    builds = s.must_build(name, slots)
    s.note_built(name, slots)
    s.phase = Phase.ROUND
    s.next_round_index += 1
    s.next_pass = max(s.next_pass, position.pass_index + 1)
    s.groups[name] = Group(
        name,
        slots,
        training_pass=position.pass_index,
        reported_pass=position.pass_index - 1,
        builds=builds,
    )
    return StartGroup(plan)


def _position(dnn: Dnn, num_positions: int) -> Position:
    """Where a DNN continues: inside the pass where it stopped, else with the pass after its last one."""
    if dnn.position is not None and 0 < dnn.position.offset < num_positions:
        return dnn.position
    return Position(dnn.history[-1].pass_index + 1 if dnn.history else 0)


# ---- the end of a pass: with which slots a DNN goes on -----------------------------------------


def on_pass_end(ensemble: Ensemble, group: Group, event: EpochDone) -> list[Instruction]:
    """A DNN has finished one of its passes: it continues at once, on the same slots or others, or leaves."""
    s, dnn = ensemble.state, ensemble.state.dnns[group.dnn_id]
    if event.start_s is not None:
        s.start_s[group.dnn_id, group.builds] = event.start_s
    if group.leaving:
        return []  # suspended while it trained the last step
    decision = evaluate(dnn.spec.stop, dnn.history)
    if decision is not None:
        return [ensemble.leave(group, Leaving.CONVERGED, decision.detail)]
    instructions = stop_at_pass_end(ensemble, [group]) or prune_at_pass_end(ensemble, [group], None)
    if instructions:
        return instructions
    slots, leaves_out = _next_slots(ensemble, group)
    if slots != group.slots:
        s.reserved[group.dnn_id] = slots
        number = "1 slot" if len(slots) == 1 else f"{len(slots)} slots"
        return [*leaves_out, ensemble.leave(group, Leaving.REGROUP, f"goes on with {number}")]
    group.training_pass = group.reported_pass + 1
    s.next_pass = max(s.next_pass, group.training_pass + 1)
    ids = (group.dnn_id,)
    goes_on = NextPass(ids, group.training_pass, ids if ensemble.settings.checkpoint_every_pass else ())
    if ensemble.settings.prune is None:
        return [goes_on]
    return [goes_on, *fill_slots(ensemble)]  # with DNNs that the rule has just let go on


def _next_slots(ensemble: Ensemble, group: Group) -> tuple[Slots, list[LeaveOut]]:
    """The slots with which a group goes on, and what it leaves out."""
    s, name = ensemble.state, group.dnn_id
    if group.offered_slot is not None:
        s.left_out[name] = (*s.left_out.get(name, ()), group.offered_slot)
        return group.wanted_slots, [LeaveOut(name, group.offered_slot)]
    if not _is_shared(ensemble):
        return group.slots, []
    free = _usable(ensemble, name, _free_slots(ensemble))
    if not free:
        return group.slots, []
    needs, has = _needs(ensemble), len(group.slots)
    wants = share_slots(needs, ensemble.cluster.num_slots)[name]
    number = needs[name].ladder.within(min(max(has, wants), has + len(free)))
    if number <= has:
        return group.slots, []
    slots = _choose(ensemble, name, number, group.slots, free)
    gained_s = needs[name].seconds(has) - needs[name].seconds(number)
    return (slots if gained_s > _change_s(ensemble, name, slots) else group.slots), []


def _needs(ensemble: Ensemble) -> dict[str, Need]:
    """Return the needs of live DNNs, without those that are about to be done."""
    s, ladders, num_positions = ensemble.state, ensemble.ladders(), ensemble.settings.num_positions
    is_over = {d: group.leaving in STATE_WHEN_SAVED for d, group in s.groups.items()}
    ended = [dnn.epochs for d, dnn in s.dnns.items() if dnn.state is DnnState.DONE or is_over.get(d, False)]
    lengths = Lengths(ended, max(dnn.epochs for dnn in s.dnns.values()))
    return {
        d: Need(_epochs_left(s.dnns[d].spec, s.dnns[d].epochs, lengths) * num_positions, ladders[d])
        for d in s.live
        if not is_over.get(d, False)
    }


def ladders_of(
    specs: Sequence[DnnSpec], rates: RateTable, limit: int | None, num_slots: int
) -> dict[str, Ladder]:
    """The numbers of slots that DNNs may have: at most `limit`, and one for each sample of a step."""
    rows = rates.matrix([spec.dnn_id for spec in specs], min(limit or num_slots, num_slots)).tolist()
    return {spec.dnn_id: Ladder.of(row[: spec.batch_size]) for spec, row in zip(specs, rows, strict=True)}


def _epochs_left(spec: DnnSpec, epochs: int, lengths: Lengths) -> float:
    """Expected epochs, >= 1, of a DNN that has trained `epochs`."""
    if spec.has_known_length:
        return max(1, spec.stop.max_epochs - epochs)
    return lengths.epochs_left(epochs)


def _change_s(ensemble: Ensemble, dnn_id: str, slots: Slots) -> float:
    """Seconds that a group does not train when it changes to these slots: to save, leave and start."""
    s = ensemble.state
    builds = s.must_build(dnn_id, slots)
    known = [s.start_s[key] for key in ((dnn_id, builds), (dnn_id, not builds)) if key in s.start_s]
    if not known:
        return ASSUMED_CHANGE_S  # it has gone on inside a pass
    return known[0] + s.save_s.get(dnn_id, max(s.save_s.values(), default=known[0]))


def _usable(ensemble: Ensemble, name: str, free: list[int]) -> list[int]:
    """The free slots that the DNN may have: not those that it goes on without."""
    return [slot for slot in free if slot not in ensemble.state.left_out.get(name, ())]


def _choose(ensemble: Ensemble, name: str, number: int, own: Slots, free: Sequence[int]) -> Slots:
    """Choose slots among its own and free ones; fewer than `number` if there are not so many."""
    built = ensemble.state.built.get(name, ())
    return choose_slots(min(number, len({*own, *free})), own, free, built, ensemble.node_of_slot)
