"""Functions of the user's own that are called while a DNN trains."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import BeforeValidator

from hpcbal.config.schema.section import ARGS_ALLOWED, IMPORT_ALLOWED, ImportPath, Section, key

CALLBACKS_ALLOWED = f"a list of {IMPORT_ALLOWED}, or of {{name: path, args: {{...}}}}"

INSTEAD_OF_KERAS_CALLBACKS = {
    "EarlyStopping": "stop.patience",
    "ModelCheckpoint": "checkpoint.keep",
    "ReduceLROnPlateau": "optimizer.schedule: plateau",
    "LearningRateScheduler": "optimizer.schedule",
    "TensorBoard": "the event files that every run writes (dnns/<name>/)",
    "CSVLogger": "results.csv and dnns/<name>/metrics.jsonl, which every run writes",
    "TerminateOnNaN": "nothing: a DNN whose loss is not finite fails by itself",
    "BackupAndRestore": "nothing: the same command resumes a run",
}
"""What hpcbal has for classes of keras.callbacks."""


def _from_name(value: Any) -> Any:
    """`mymodule:record` is short for `{name: mymodule:record}`."""
    return {"name": value} if isinstance(value, str) else value


class CallbackConfig(Section):
    """What is called at the end of each epoch."""

    name: ImportPath = key(..., "A function, or a class whose objects can be called.", IMPORT_ALLOWED)
    args: Mapping[str, Any] = key({}, "Its arguments.", ARGS_ALLOWED)


Callback = Annotated[CallbackConfig, BeforeValidator(_from_name)]
