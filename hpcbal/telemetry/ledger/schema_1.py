"""Read lines of schema 1, from versions of hpcbal before ledgers had typed lines."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_PARTS = ("wait_s", "trained_s", "ranks", "balance", "partition")
_COUNTS = {"steps": "num_steps", "samples": "num_samples", "trained_samples": "num_trained"}
_LACKED: Mapping[str, Mapping[str, Any]] = {
    "run-started": {"kind": "ensemble", "paradigm": None, "regroup": True},
    "round-ended": {"suspended": False, "continues": False},
    "leave-round": {"detail": ""},
    "checkpoint-written": {"held_s": 0.0},
    "run-finished": {"decided_s": 0.0, "preprocessed_samples": 0, "preprocessing_s": 0.0},
}
"""Fields that schema 2 requires and that early files of schema 1 lack, with their default values."""


def upgrade(event: str, fields: Mapping[str, Any]) -> dict[str, Any]:
    """Convert the fields of a line from schema 1 to schema 2.

    Values that do not have the form of schema 1 are not changed; decoding rejects them afterwards.

    Args:
        event: the line's kind.
        fields: the line's fields, without those that all lines have.
    """
    new = {**_LACKED.get(event, {}), **fields}
    if event == "epoch-done":
        return _epoch(new)
    if event == "run-finished":
        new["num_preprocessed"] = new.pop("preprocessed_samples")
    if isinstance(plan := new.get("plan"), dict):
        new["plan"] = {**plan, "start": _positions(plan.get("start"))}
    return new


def _epoch(fields: dict[str, Any]) -> dict[str, Any]:
    """Move measurements to `facts`, and convert counts to whole numbers."""
    facts = {"wait_s": 0.0, "trained_s": 0.0, "num_steps": 0, "num_samples": 0, "num_trained": 0}
    facts |= {name: fields.pop(name) for name in _PARTS if name in fields}
    facts |= {new: _whole(fields.pop(old)) for old, new in _COUNTS.items() if old in fields}
    return {**fields, "facts": facts}


def _whole(value: Any) -> Any:
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _positions(start: Any) -> Any:
    """Convert each DNN's [pass, offset] to a position."""
    if not isinstance(start, dict):
        return start
    return {
        dnn: {"pass_index": at[0], "offset": at[1]} if isinstance(at, list) and len(at) == 2 else at
        for dnn, at in start.items()
    }
