"""The content of a checkpoint: everything a job needs to continue as if it had never stopped."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hpcbal.errors import CheckpointError
from hpcbal.events.history import EpochRecord, Position


@dataclass(frozen=True, slots=True)
class TrainingState:
    """A job between two steps: a DNN of an ensemble, or what another kind of run trains.

    Attributes:
        name: name of the job in the config.
        epoch: completed epochs, >= 0.
        position: the sample at which training continues.
        history: one record per completed epoch, oldest first.
        arrays: what is trained, under path-like names (for a DNN: "weights/...", "optimizer/..."); numbers
            and booleans of any shape, never changed after the state was made. Empty if only the progress was
            read.
        fingerprint: fingerprint of the data; training must not continue with other data.
        meta: a small value that belongs to the kind of run, as JSON (None, booleans, numbers, text, lists,
            and mappings with text as keys). It is read with the progress. For DNNs see `best`.
    """

    name: str
    epoch: int
    position: Position
    history: tuple[EpochRecord, ...] = ()
    arrays: Mapping[str, NDArray[Any]] = field(default_factory=dict)
    fingerprint: str = ""
    meta: Mapping[str, Any] = field(default_factory=dict)


def progress_to_json(state: TrainingState) -> str:
    """All of `state` except the arrays. Floats survive exactly, NaN included.

    The name is stored as `dnn_id`; an empty `meta` is left out.

    Raises:
        CheckpointError: if `meta` holds a value that JSON would not restore exactly.
    """
    fields: dict[str, Any] = {
        "dnn_id": state.name,
        "epoch": state.epoch,
        "pass_index": state.position.pass_index,
        "offset": state.position.offset,
        "fingerprint": state.fingerprint,
        "history": [record.to_json() for record in state.history],
    }
    if state.meta:
        _check_json(dict(state.meta), "meta")
        fields["meta"] = dict(state.meta)
    return json.dumps(fields)


def progress_from_json(text: str, arrays: Mapping[str, NDArray[np.generic]]) -> TrainingState:
    """The inverse of `progress_to_json`.

    Raises:
        CheckpointError: if a field is missing or has another type.
    """
    try:
        fields = json.loads(text)
        return TrainingState(
            name=str(fields["dnn_id"]),
            epoch=int(fields["epoch"]),
            position=Position(int(fields["pass_index"]), int(fields["offset"])),
            history=tuple(map(EpochRecord.from_json, fields["history"])),
            arrays=arrays,
            fingerprint=str(fields["fingerprint"]),
            meta=dict(fields.get("meta", {})),
        )
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise CheckpointError(f"its progress record cannot be understood ({error!r})") from error


def _check_json(value: Any, where: str) -> None:
    """Raise unless `value` is plain JSON; tuples, NumPy numbers and keys other than text would change."""
    if isinstance(value, dict) and all(isinstance(key, str) for key in value):
        for key, item in value.items():
            _check_json(item, f"{where}.{key}")
    elif isinstance(value, list):
        for index, item in enumerate(value):
            _check_json(item, f"{where}.{index}")
    elif value is not None and type(value) not in (bool, int, float, str):
        raise CheckpointError(
            f"{where} is {value!r}: the meta of a checkpoint can hold None, booleans, numbers, text, lists, "
            "and dicts with text as keys; put arrays into `arrays`"
        )
