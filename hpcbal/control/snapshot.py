"""Render the state of the ensemble as plain JSON values."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from hpcbal.control.state import Dnn, EnsembleState, Group
from hpcbal.control.states import DnnState, Phase
from hpcbal.control.stopping import best


def render(state: EnsembleState) -> dict[str, Any]:
    """The state for status.json; strict JSON, with null for values that are not known.

    Returns: phase, outcome, suspending (the reason or null), round, pass_index, next_pass,
        num_live, num_done, num_pruned, num_failed, and per DNN: state ('paused' while it waits for results of
        others), epochs, max_epochs, metrics (of the
        last epoch), monitor, best, best_epoch, gpus, left_out, leaving, cause, detail.
    """
    in_round = state.phase is Phase.ROUND and state.plan is not None
    states = [str(dnn.state) for dnn in state.dnns.values()]
    return {
        "phase": str(state.phase),
        "outcome": state.outcome or None,
        "suspending": state.suspend_reason or None,
        "round": state.plan.index if state.plan is not None else None,
        "pass_index": state.pass_index if in_round else None,
        "next_pass": state.next_pass,
        "num_live": len(state.live_ids()),
        "num_done": states.count("done"),
        "num_pruned": states.count("pruned"),
        "num_failed": states.count("failed"),
        "dnns": {
            dnn_id: _dnn(
                dnn, state.groups.get(dnn_id), state.left_out.get(dnn_id, ()), state.paused.get(dnn_id, "")
            )
            for dnn_id, dnn in state.dnns.items()
        },
    }


def _dnn(dnn: Dnn, group: Group | None, left_out: tuple[int, ...], paused: str) -> dict[str, Any]:
    found = best(dnn.spec.stop, dnn.history)
    is_paused = bool(paused) and dnn.state is DnnState.WAITING
    best_json = _to_json({} if found.value is None else {"best": found.value})
    return {
        "state": "paused" if is_paused else str(dnn.state),
        "epochs": dnn.epochs,
        "max_epochs": dnn.spec.stop.max_epochs,
        "metrics": _to_json(dnn.history[-1].metrics) if dnn.history else {},
        "monitor": dnn.spec.stop.monitor,
        "best": best_json.get("best"),
        "best_epoch": found.epoch or None,
        "gpus": list(group.gpus) if group is not None else [],
        "left_out": list(left_out),
        "leaving": group.leaving or None if group is not None else None,
        "cause": dnn.cause or None,
        "detail": (paused if is_paused else dnn.detail) or None,
    }


def _to_json(metrics: Mapping[str, float]) -> dict[str, float | None]:
    """Metrics in strict JSON: NaN and infinities become null."""
    return {name: float(value) if math.isfinite(value) else None for name, value in metrics.items()}
