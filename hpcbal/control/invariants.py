"""What must be true of the ensemble's state after every event."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

from hpcbal.cluster.layout import Cluster
from hpcbal.control.state import EnsembleState
from hpcbal.control.states import TERMINAL, WITH_GROUP, DnnState, Phase


def problems(state: EnsembleState, cluster: Cluster) -> Iterator[str]:
    """Yield a message for every broken invariant; nothing if all hold."""
    yield from _gpus(state, cluster)
    yield from _groups(state)
    yield from _phase(state)
    yield from _lock_step(state)
    yield from _dnns(state)
    yield from _left_out(state, cluster)


def _gpus(state: EnsembleState, cluster: Cluster) -> Iterator[str]:
    owner: dict[int, str] = {}
    for dnn_id, group in state.groups.items():
        if not group.gpus:
            yield f"the group of {dnn_id} has no slot"
        for gpu in group.gpus:
            if not 0 <= gpu < cluster.num_gpus:
                yield f"{dnn_id} holds slot {gpu}, but the allocation has {cluster.num_gpus}"
            if gpu in owner:
                yield f"slot {gpu} is held by {owner[gpu]} and {dnn_id}"
            owner[gpu] = dnn_id


def _groups(state: EnsembleState) -> Iterator[str]:
    if state.live_ids() != [dnn_id for dnn_id, dnn in state.dnns.items() if dnn.is_live]:
        yield f"the DNNs that go on are not those listed as live: {state.live_ids()}"
    for dnn_id, dnn in state.dnns.items():
        group = state.groups.get(dnn_id)
        if dnn.state in WITH_GROUP and group is None:
            yield f"{dnn_id} is {dnn.state} but has no group"
        if group is None:
            continue
        if dnn.state not in WITH_GROUP | TERMINAL:
            yield f"{dnn_id} is {dnn.state} but has a group"
        if group.is_profiling != (state.phase is Phase.PROFILING):
            yield f"the group of {dnn_id} does not belong to phase {state.phase}"
        if (dnn.state is DnnState.RUNNING) != (not group.is_profiling and not group.leaving):
            yield f"{dnn_id} is {dnn.state} while its group is leaving because {group.leaving!r}"
        if state.plan is not None and state.phase is Phase.ROUND:
            planned = {g.dnn_id: g.gpus for g in state.plan.groups}
            if planned.get(dnn_id) != group.gpus:
                yield f"{dnn_id} holds slots {group.gpus}, planned: {planned.get(dnn_id)}"


def _phase(state: EnsembleState) -> Iterator[str]:
    working = state.phase in (Phase.PROFILING, Phase.ROUND)
    if working != bool(state.groups):
        yield f"phase {state.phase} with {len(state.groups)} groups"
    if (state.phase is Phase.FINISHED) != bool(state.outcome):
        yield f"phase {state.phase} with outcome {state.outcome!r}"
    if (
        state.phase is Phase.ROUND
        and state.plan is None
        and any(len(g.gpus) > 1 for g in state.groups.values())
    ):
        yield "a round without a plan"
    all_done = all(dnn.state in (DnnState.DONE, DnnState.PRUNED) for dnn in state.dnns.values())
    if state.outcome and (state.outcome == "done") != all_done:
        yield f"outcome {state.outcome!r} contradicts the states of the DNNs"
    if state.outcome and (state.outcome in ("suspended", "profiled")) != bool(state.live_ids()):
        yield f"outcome {state.outcome!r} with {len(state.live_ids())} live DNNs"


def _lock_step(state: EnsembleState) -> Iterator[str]:
    """For a round with a shared stream; the independent paradigm has none."""
    if state.phase is Phase.ROUND and state.plan is not None:
        if state.next_pass <= state.pass_index:
            yield f"pass {state.pass_index} runs, but the next unused pass is recorded as {state.next_pass}"
        staying = state.staying_groups()
        if staying and not any(g.training_pass == state.pass_index for g in staying):
            yield f"no group trains pass {state.pass_index}, and nothing was decided"
        if staying and state.suspend_reason:
            yield f"{staying[0].dnn_id} was not asked to suspend"


def _dnns(state: EnsembleState) -> Iterator[str]:
    for dnn_id, dnn in state.dnns.items():
        if [record.epoch for record in dnn.history] != list(range(1, dnn.epochs + 1)):
            yield f"the epochs of {dnn_id} are not counted from 1"
        passes = [record.pass_index for record in dnn.history]
        if any(later <= earlier for earlier, later in itertools.pairwise(passes)):
            yield f"{dnn_id} trained passes out of order: {passes}"
        if dnn.state is DnnState.FAILED and not dnn.cause:
            yield f"{dnn_id} failed without a cause"
        if dnn.state in (DnnState.DONE, DnnState.PRUNED) and not dnn.history:
            yield f"{dnn_id} is {dnn.state} without an epoch"


def _left_out(state: EnsembleState, cluster: Cluster) -> Iterator[str]:
    for dnn_id, gpus in state.left_out.items():
        if dnn_id not in state.dnns:
            yield f"{dnn_id} goes on without slots {gpus}, but the ensemble has no such DNN"
        if len(set(gpus)) < len(gpus) or not set(gpus) < set(range(cluster.num_gpus)):
            yield f"{dnn_id} goes on without slots {gpus}, allowed: not all of {cluster.num_gpus}, none twice"
        group = state.groups.get(dnn_id)
        if group is not None and not group.is_profiling and len(set(group.gpus) & set(gpus)) > 1:
            yield f"{dnn_id} holds slots {group.gpus}, although it goes on without {gpus}"
