"""Paradigms without rounds: each DNN trains its own passes at its own pace, on slots of its own.

With `elastic`, slots are shared out anew whenever a DNN has ended a pass: it goes on as it is, with more or
fewer slots, or waits. Nobody else waits for that. With `independent`, each DNN keeps one slot to its end.

A group whose slots change is formed again: it writes a checkpoint, leaves, and starts on its new slots, which
are reserved for it meanwhile. What that costs is measured, and counts: a DNN gets more slots only if it gains
more time than it loses, and keeps its slots until a change costs at most `MOST_COST` of its stay.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from hpcbal.control.progress import DnnSpec, ScheduleSettings, evaluate
from hpcbal.control.pruning import prune_at_pass_end, prune_between_rounds
from hpcbal.control.state import Dnn, Group
from hpcbal.control.states import STATE_WHEN_SAVED, DnnState, Leaving, Phase
from hpcbal.events.ensemble import (
    EpochDone,
    GroupPlan,
    Instruction,
    LeaveOut,
    LeaveRound,
    NextPass,
    RoundPlan,
    StartGroup,
)
from hpcbal.events.history import Position
from hpcbal.policies import RateTable, order_alone, random_order
from hpcbal.policies.elastic import Ladder, Lengths, Need, Share, choose_slots, share_slots

if TYPE_CHECKING:
    from hpcbal.control.ensemble import Ensemble

MOST_COST = 0.03
"""A group keeps its slots until what a change costs is at most this share of the time that it has trained."""

ASSUMED_CHANGE_S = 1.0
"""Cost of a change of a group, as long as no group has started or left."""

Slots = tuple[int, ...]


# ---- free slots: who starts on them ------------------------------------------------------------


def fill_slots(ensemble: Ensemble) -> list[Instruction]:
    """Give free slots to the DNNs that wait; finish when no DNN is left."""
    s = ensemble.state
    instructions: list[Instruction] = []
    if s.suspend_reason:
        s.reserved.clear()
    else:
        for name in [d for d in s.reserved if s.dnns[d].state is DnnState.WAITING]:
            instructions.append(_start(ensemble, s.dnns[name], s.reserved.pop(name)))
        prune_between_rounds(ensemble)
        fill = _fill_by_shares if _is_shared(ensemble) else _fill_one_by_one
        instructions += fill(ensemble, _free_slots(ensemble))
    return instructions if s.groups else ensemble.finish()


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
    waiting = [d for d in s.live if s.dnns[d].state is DnnState.WAITING and d not in s.reserved]
    if not (free and waiting):
        return []
    instructions: list[Instruction] = []
    for name, number in _next_groups(_needs(ensemble), waiting, ensemble.cluster.num_slots, len(free)):
        slots = _choose(ensemble, name, number, (), _usable(ensemble, name, free) or free)
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
    return list(_next_groups(needs, list(needs), num_slots, num_slots))


def _next_groups(
    needs: Mapping[str, Need], waiting: list[str], num_slots: int, num_free: int
) -> Iterator[tuple[str, int]]:
    """Yield the DNNs of `waiting` that get free slots, and how many."""
    shares = share_slots(needs, num_slots)
    for name in sorted(waiting, key=lambda d: (shares[d].num_slots == 0, -shares[d].seconds)):  # stable
        if num_free == 0:
            break
        number = needs[name].ladder.within(min(max(1, shares[name].num_slots), num_free))
        num_free -= number
        yield name, number


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
            num_preprocessors=1,
            predicted_rate_samples_per_s=rates,
            num_slots=len(slots),
        )
    )
    ensemble.move(dnn, DnnState.RUNNING)
    dnn.position = None
    s.note_built(name, slots)
    s.phase = Phase.ROUND
    s.next_round_index += 1
    s.next_pass = max(s.next_pass, position.pass_index + 1)
    s.groups[name] = Group(
        name, slots, training_pass=position.pass_index, reported_pass=position.pass_index - 1
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
    group.trained_s += event.seconds
    if event.start_s > 0.0:
        s.start_s[group.dnn_id] = max(s.start_s.get(group.dnn_id, 0.0), event.start_s)
    if group.leaving:
        return []  # suspended while it trained the last step
    decision = evaluate(dnn.spec.stop, dnn.history)
    if decision is not None:
        return [_leave(ensemble, group, Leaving.CONVERGED, decision.detail)]
    instructions = prune_at_pass_end(ensemble, [group], None)
    if instructions:
        return instructions
    slots, leaves_out = _next_slots(ensemble, group)
    if slots != group.slots:
        if slots:
            s.reserved[group.dnn_id] = slots
        number = "1 slot" if len(slots) == 1 else f"{len(slots)} slots"
        detail = f"goes on with {number}" if slots else "makes room for DNNs that need longer"
        return [*leaves_out, _leave(ensemble, group, Leaving.REGROUP, detail)]
    group.training_pass = group.reported_pass + 1
    s.next_pass = max(s.next_pass, group.training_pass + 1)
    ids = (group.dnn_id,)
    return [NextPass(ids, group.training_pass, ids if ensemble.settings.checkpoint_every_pass else ())]


def _leave(ensemble: Ensemble, group: Group, reason: Leaving, detail: str) -> LeaveRound:
    ensemble.move(ensemble.state.dnns[group.dnn_id], DnnState.LEAVING)
    group.leaving, group.detail = reason, detail
    return LeaveRound(group.dnn_id, reason, detail)


def _next_slots(ensemble: Ensemble, group: Group) -> tuple[Slots, list[LeaveOut]]:
    """The slots with which a group goes on; none if it is to wait."""
    s, name = ensemble.state, group.dnn_id
    if group.offered_slot is not None:
        s.left_out[name] = (*s.left_out.get(name, ()), group.offered_slot)
        return group.wanted_slots, [LeaveOut(name, group.offered_slot)]
    if not _is_shared(ensemble):
        return group.slots, []
    needs, has, free = _needs(ensemble), len(group.slots), _usable(ensemble, name, _free_slots(ensemble))
    shares = share_slots(needs, ensemble.cluster.num_slots)
    wants = shares[name].num_slots
    if wants > has:
        number = _more(ensemble, group, needs[name], min(wants, has + len(free)))
    elif wants < has:
        number = _fewer(ensemble, group, shares, len(free))
    else:
        number = has
    if number in (0, has):
        return (group.slots if number else ()), []
    return _choose(ensemble, name, number, group.slots, free if number > has else ()), []


def _more(ensemble: Ensemble, group: Group, need: Need, most: int) -> int:
    """How many slots a group gets, up to `most`: as many as gain it more time than the change costs."""
    has, number = len(group.slots), need.ladder.within(most)
    gained_s = need.seconds(has) - need.seconds(number)
    return number if number > has and gained_s > _change_s(ensemble, group.dnn_id) else has


def _fewer(ensemble: Ensemble, group: Group, shares: Mapping[str, Share], num_free: int) -> int:
    """How many slots a group keeps: it gives up no more than other DNNs lack, which may be all."""
    s, has, change_s = ensemble.state, len(group.slots), _change_s(ensemble, group.dnn_id)
    if change_s > MOST_COST * group.trained_s:
        return has
    lacking = {
        d: share.num_slots - len(s.groups[d].slots if d in s.groups else s.reserved.get(d, ()))
        for d, share in shares.items()
        if d != group.dnn_id
    }
    lack = sum(max(0, number) for number in lacking.values()) - num_free
    if lack <= 0:
        return has
    number = max(1, shares[group.dnn_id].num_slots, has - lack)
    if number > 1 or shares[group.dnn_id].num_slots:
        return min(number, has)
    waiting = [shares[d].seconds for d, more in lacking.items() if more > 0 and d not in s.groups]
    is_urgent = max(waiting, default=0.0) > shares[group.dnn_id].seconds + change_s
    return 0 if is_urgent else min(number, has)


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


def _change_s(ensemble: Ensemble, dnn_id: str) -> float:
    """Seconds that a group's slots do not train when it is formed again: to save, leave and start."""
    s = ensemble.state
    start_s, save_s = (
        known.get(dnn_id) or max(known.values(), default=0.0) for known in (s.start_s, s.save_s)
    )
    return start_s + (save_s or start_s) or ASSUMED_CHANGE_S


def _usable(ensemble: Ensemble, name: str, free: list[int]) -> list[int]:
    """The free slots that the DNN may have: not those that it goes on without."""
    return [slot for slot in free if slot not in ensemble.state.left_out.get(name, ())]


def _choose(ensemble: Ensemble, name: str, number: int, own: Slots, free: Sequence[int]) -> Slots:
    """Choose slots among its own and free ones; fewer than `number` if there are not so many."""
    built = ensemble.state.built.get(name, ())
    return choose_slots(min(number, len({*own, *free})), own, free, built, ensemble.node_of_slot)
