"""A user's preprocessing operation, named by its import path: a function, or a class with `apply`."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from hpcbal import env
from hpcbal.data.dataset import UnusableSampleError, kind_of, unmasked
from hpcbal.data.operations.base import OperationError, require_array
from hpcbal.data.spec import SampleSpec
from hpcbal.errors import DataError, HpcbalError, UserCodeError
from hpcbal.processes import leave_if_forked
from hpcbal.user_code import summary

_WHAT = "a preprocessing operation"


@dataclass(frozen=True, slots=True)
class CustomOperation:
    """Calls a user's code for one sample after another; see docs/your-own-model-and-data.md.

    Attributes:
        path: import path of the function or class.
        args: its arguments.
        function: called with a sample and a random generator (None in validation).
        spec_function: the user's `output_spec`; None if samples keep shape and type.
        key: what lists it, for messages.
    """

    is_random: ClassVar[bool] = True

    path: str
    args: Mapping[str, Any]
    function: Callable[..., Any]
    spec_function: Callable[..., Any] | None = None
    key: str = "preprocessing"

    def __repr__(self) -> str:
        """Enters the fingerprint of the data."""
        args = ", ".join(f"{name}={self.args[name]!r}" for name in sorted(self.args))
        return f"{self.path}({args})"

    def output_spec(self, spec: SampleSpec | None) -> SampleSpec:
        """Return the spec that the user's `output_spec` gives for samples of `spec`; without one, `spec`.

        Raises:
            OperationError: if it returns no spec.
            UserCodeError: if it raises.
        """
        if self.spec_function is None:
            return require_array(self.path, spec)
        try:
            given = self.spec_function(spec)
        except HpcbalError as error:
            raise OperationError(f"{self.path}: output_spec: {error}") from error
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # a user's code may raise anything
            text = f"{self.key}: {self.path}: output_spec failed for samples {spec}: {summary(error)}"
            raise UserCodeError(text) from error
        finally:
            leave_if_forked(_WHAT)
        if not _is_spec(given):
            raise OperationError(
                f"{self.path}: output_spec returned {kind_of(given)}, allowed: SampleSpec.of(shape, dtype)"
            )
        checked: SampleSpec = given
        return checked

    def apply(self, sample: Any, rng: np.random.Generator | None) -> NDArray[Any]:
        """Call the user's code with a copy of the sample, which it may change.

        What it raises is for the caller to turn into a broken sample. `check_returned` checks the result.
        """
        own = np.array(sample, order="C") if isinstance(sample, np.ndarray) else sample
        try:
            result: NDArray[Any] = self.function(own, rng)
        finally:
            leave_if_forked(_WHAT)
        return result

    def check_returned(self, result: Any, promised: SampleSpec) -> None:
        """Check one result of `apply`.

        Args:
            promised: what `output_spec` returned.

        Raises:
            UnusableSampleError: if it is anything else.
        """
        if isinstance(result, np.ndarray) and promised.admits(result):
            unmasked(result)
            return
        if result is None:
            remedy = "does it lack a return?"
        elif isinstance(result, np.ndarray) and result.dtype.name != promised.dtype:
            remedy = f"convert it with .astype({promised.dtype!r}), or {_remedy(self.spec_function)}"
        else:
            remedy = _remedy(self.spec_function)
        raise UnusableSampleError(
            f"{self.path} returned {kind_of(result)}, allowed: an array {promised}; {remedy}"
        )


def custom_operation(path: str, args: Mapping[str, Any], key: str = "preprocessing") -> CustomOperation:
    """Find a user's function or class, and make an object of a class.

    Args:
        path: "package.module:name".
        args: keyword arguments of the function after sample and random generator, or of the class.
        key: what lists it, for messages.

    Raises:
        OperationError: if it does not take these arguments, or an object of the class has no `apply`.
        InputError: if nothing exists at the import path.
        UserCodeError: if the module or the class raises.
    """
    from hpcbal.config.callables import OPERATION, misfits
    from hpcbal.config.imports import load_object

    called_with = env.expanded(args, f"{key}: {path}")
    target = load_object(path)
    is_class = inspect.isclass(target)
    try:
        signature = inspect.signature(target)
    except ValueError:  # some callables written in C have no signature
        signature = None
    if signature is not None:
        contract = replace(OPERATION, passed=(), words=()) if is_class else OPERATION
        found = misfits(path, signature, args, contract)
        if found:
            raise OperationError("; ".join(misfit.text for misfit in found))
    if not is_class:
        return CustomOperation(path, args, partial(target, **called_with), key=key)
    try:
        made = target(**called_with)
        apply, spec_function = getattr(made, "apply", None), getattr(made, "output_spec", None)
    except (HpcbalError, KeyboardInterrupt):
        raise
    except BaseException as error:  # a user's code may raise anything
        raise UserCodeError(f"{key}: {path}: making it failed: {summary(error)}") from error
    finally:
        leave_if_forked(_WHAT)
    if not callable(apply):
        raise OperationError(
            f"{path}: got a class without the method apply(self, sample, rng), which an operation needs"
        )
    return CustomOperation(path, args, apply, spec_function if callable(spec_function) else None, key)


def _is_spec(value: Any) -> bool:
    """Whether this equals what `SampleSpec.of` makes of the same shape and type."""
    try:
        return isinstance(value, SampleSpec) and value == SampleSpec.of(
            value.shape, value.dtype, value.max_bytes
        )
    except DataError:
        return False


def _remedy(spec_function: object) -> str:
    if spec_function is None:
        return "write a class with output_spec, which says what apply returns"
    return "output_spec must say what apply returns"
