"""The independent paradigm: each DNN trains alone on one slot, with its own stream."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from hpcbal.control.progress import ScheduleSettings, evaluate
from hpcbal.control.pruning import prune_at_pass_end, prune_between_rounds
from hpcbal.control.state import Dnn, Group
from hpcbal.control.states import DnnState, Leaving, Phase
from hpcbal.events.ensemble import GroupPlan, Instruction, LeaveRound, NextPass, RoundPlan, StartAlone
from hpcbal.events.history import Position
from hpcbal.policies import RateTable, order_alone, random_order

if TYPE_CHECKING:
    from hpcbal.control.ensemble import Ensemble


def fill_slots(ensemble: Ensemble) -> list[Instruction]:
    """Give free slots to the next DNNs; finish when no DNN is left.

    DNNs that an earlier start began come first. If the rates of all DNNs on one slot are known, the next ones
    are those that need the longest to `max_epochs`, so that no long one is left when the other slots are
    idle. Otherwise the order is random. Either order is fixed for the run, and the same after a resume. If
    several slots are free, a DNN gets one where its network is built.

    Source: [FLEET] Sec. 6.1, "Baseline": a GPU randomly picks one yet-to-be-trained DNN whenever it becomes
        free until there are no DNN left. Deviation: the longest one if rates are known.
    """
    s = ensemble.state
    instructions: list[Instruction] = []
    if not s.suspend_reason:
        prune_between_rounds(ensemble)
        taken = {slot for group in s.groups.values() for slot in group.slots}
        free = [slot for slot in range(ensemble.cluster.num_slots) if slot not in taken]
        while free and (dnn := _next_dnn(ensemble)) is not None:
            built = s.built.get(dnn.spec.dnn_id, ())
            slot = next((slot for slot in free if slot in built), free[0])
            free.remove(slot)
            instructions.append(_start(ensemble, dnn, slot))
    return instructions if s.groups else ensemble.finish()


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


def _start(ensemble: Ensemble, dnn: Dnn, slot: int) -> StartAlone:
    s, name = ensemble.state, dnn.spec.dnn_id
    position = _position(dnn, ensemble.settings.num_positions)
    rates = {name: s.rates.rate(name, 1)} if s.rates.is_measured(name, 1) else {}
    plan = ensemble.measuring(
        RoundPlan(
            index=s.next_round_index,
            groups=(GroupPlan(name, (slot,)),),
            first_pass=position.pass_index,
            start={name: position},
            epochs={name: dnn.epochs},
            num_preprocessors=1,
            predicted_rate_samples_per_s=rates,
            num_slots=1,
        )
    )
    ensemble.move(dnn, DnnState.RUNNING)
    dnn.position = None
    s.note_built(name, (slot,))
    s.phase = Phase.ROUND
    s.next_round_index += 1
    s.next_pass = max(s.next_pass, position.pass_index + 1)
    s.groups[name] = Group(
        name, (slot,), training_pass=position.pass_index, reported_pass=position.pass_index - 1
    )
    return StartAlone(plan)


def _position(dnn: Dnn, num_positions: int) -> Position:
    """Where a DNN continues: inside the pass where it stopped, else with the pass after its last one."""
    if dnn.position is not None and 0 < dnn.position.offset < num_positions:
        return dnn.position
    return Position(dnn.history[-1].pass_index + 1 if dnn.history else 0)


def on_pass_end(ensemble: Ensemble, group: Group) -> list[Instruction]:
    """A DNN finished a pass of its own stream: it continues at once, or leaves."""
    dnn = ensemble.state.dnns[group.dnn_id]
    if group.leaving:
        return []  # suspended while it trained the last step
    decision = evaluate(dnn.spec.stop, dnn.history)
    if decision is not None:
        ensemble.move(dnn, DnnState.LEAVING)
        group.leaving, group.detail = Leaving.CONVERGED, decision.detail
        return [LeaveRound(group.dnn_id, Leaving.CONVERGED, decision.detail)]
    instructions = prune_at_pass_end(ensemble, [group], None)
    if instructions:
        return instructions
    group.training_pass = group.reported_pass + 1
    ensemble.state.next_pass = max(ensemble.state.next_pass, group.training_pass + 1)
    ids = (group.dnn_id,)
    return [NextPass(ids, group.training_pass, ids if ensemble.settings.checkpoint_every_pass else ())]
