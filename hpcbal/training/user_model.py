"""Call the function or class that makes a user's model; their errors become one sentence about the DNN."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Iterator
from typing import Any

from hpcbal.config.contract import MODEL, misfits
from hpcbal.config.imports import load_object
from hpcbal.errors import HpcbalError, InputError, UserCodeError
from hpcbal.training.backend import DnnSettings, SampleShape
from hpcbal.training.failure import USER_ERRORS
from hpcbal.user_code import summary


def make_model(dnn: DnnSettings, sample: SampleShape, num_classes: int) -> Any:
    """Import the callable, and call it with the shape of a sample, the number of classes and `args`.

    Raises:
        InputError: if it does not exist, or does not take these arguments.
        UserCodeError: if it raises.
    """
    with user_errors(dnn, "importing it"):
        function = load_object(dnn.model)
    with contextlib.suppress(ValueError):  # some callables written in C have no signature
        found = misfits(dnn.model, inspect.signature(function), dnn.args, MODEL)
        if found:
            raise InputError(f"DNN {dnn.name}: {'; '.join(misfit.text for misfit in found)}")
    with user_errors(dnn, "building it"):
        return function(tuple(sample.shape), num_classes, **dnn.args)


@contextlib.contextmanager
def user_errors(dnn: DnnSettings, doing: str) -> Iterator[None]:
    """Turn what a user's code raises into a `UserCodeError`; hpcbal's errors and `MemoryError` pass.

    Args:
        dnn: its model is running.
        doing: what is done with the model.
    """
    try:
        yield
    except (HpcbalError, MemoryError):
        raise
    except USER_ERRORS as error:
        raise UserCodeError(f"DNN {dnn.name}: model {dnn.model}: {doing} failed: {summary(error)}") from error
