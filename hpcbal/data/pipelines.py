"""The preprocessing of samples of one array, or of several with names: a chain of operations for each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from hpcbal.config.source.meant import did_you_mean
from hpcbal.data.arrays import Affine
from hpcbal.data.custom_operation import CustomOperation
from hpcbal.data.dataset import AnySample, RawSample, RawSpec, specs_by_name
from hpcbal.data.operations.base import Operation, OperationError
from hpcbal.data.operations.mixing import MixingOperation
from hpcbal.data.pipeline import Pipeline
from hpcbal.data.spec import UNNAMED, SampleSpec
from hpcbal.errors import ConfigError, DataError

AnyOperation = Operation | MixingOperation


class Pipelines:
    """A pipeline for each array of a sample; they draw from the sample's random stream one after another.

    Attributes:
        operations: as given.
        mixing: those of them that work on pairs of samples; `complete` stops before them.
        output_spec: spec of what the model is called with, after all operations.
        host_spec: spec of what is left of it for the device: `output_spec`, unless operations are left.
        prepared_spec: spec of what `prepare` returns; None if it is no one array.
        on_device: the operations left for the device, in order; they turn `host_spec` into `output_spec`.
        indices_on_device: which of `operations` these are.
        is_random: whether training samples differ from pass to pass.
        is_fixed: whether `complete` has nothing to do: what `prepare` returns is of `host_spec`.
        is_exact: whether all operations run one by one, see `Pipeline`.
        customised: names of arrays on which a user's code runs.
        may_become_nonfinite: names of arrays that may have NaN and infinite values after the operations.

    Args:
        operations: in the order of application.
        of: with each operation, the arrays that it is for; none: the only one that it can work on.
        input_spec: the dataset's `sample_spec`.
        max_sample_bytes, on_device, key: see `Pipeline`.

    Raises:
        ConfigError: if an operation does not fit, or it is not clear which array is meant.
        UserCodeError: if a user's operation raises.
        DataError: for encoded images without `decode`, samples without a bound, and named arrays whose shapes
            differ from sample to sample.
    """

    def __init__(
        self,
        operations: Sequence[AnyOperation],
        of: Sequence[Sequence[str]],
        input_spec: RawSpec,
        max_sample_bytes: int | None = None,
        *,
        on_device: bool = False,
        key: str = "preprocessing",
    ) -> None:
        self.operations = tuple(operations)
        self._is_named = isinstance(input_spec, Mapping)
        inputs = specs_by_name(input_spec)
        own: dict[str, list[AnyOperation]] = {name: [] for name in inputs}
        places: dict[str, list[int]] = {name: [] for name in inputs}
        if not self._is_named:
            _refuse_names(of, key)
            own[UNNAMED] += operations
            places[UNNAMED] += range(len(operations))
        else:
            specs = dict(inputs)
            for index, (operation, names) in enumerate(zip(operations, of, strict=True)):
                for name in _meant(f"{key}.{index}", operation, names, specs):
                    specs[name] = _spec_after(f"{key}.{index}", operation, specs[name])
                    own[name].append(operation)
                    places[name].append(index)
        self._by_name: dict[str, Pipeline] = {}
        for name, each in own.items():
            try:
                self._by_name[name] = Pipeline(
                    each, inputs[name], max_sample_bytes, on_device=on_device, key=key
                )
            except DataError as error:
                raise DataError(f"{name}: {error}" if name else str(error)) from error
        every = self._by_name.values()
        self.mixing = tuple(each for pipeline in every for each in pipeline.mixing)
        self.output_spec = self._joined({name: each.output_spec for name, each in self._by_name.items()})
        self.host_spec = self._joined({name: each.host_spec for name, each in self._by_name.items()})
        prepared = {name: each.prepared_spec for name, each in self._by_name.items()}
        self.prepared_spec = prepared.get(UNNAMED)
        if self._is_named and all(spec is not None and spec.is_static for spec in prepared.values()):
            self.prepared_spec = SampleSpec.of_named(cast(Mapping[str, SampleSpec], prepared))
        self.on_device: tuple[Affine, ...] = tuple(
            replace(affine, of=name) for name, each in self._by_name.items() for affine in each.on_device
        )
        self.indices_on_device = frozenset(
            index
            for name, each in self._by_name.items()
            for index in places[name][len(places[name]) - len(each.on_device) :]
        )
        self.is_random = any(pipeline.is_random for pipeline in every)
        self.is_fixed = all(pipeline.is_fixed for pipeline in every) and (
            not self._is_named or self.prepared_spec == self.host_spec
        )
        self.is_exact = all(pipeline.is_exact for pipeline in every)
        self.customised = frozenset(name for name, each in self._by_name.items() if each.is_custom)
        # Our operations turn finite numbers into finite ones, so samples made of integers need no check.
        self.may_become_nonfinite = frozenset(
            name
            for name, each in self._by_name.items()
            if _is_float(each.input_spec) or (each.is_custom and _is_float(each.host_spec))
        )

    def _joined(self, specs: Mapping[str, SampleSpec]) -> SampleSpec:
        """The spec of a sample of these arrays."""
        if not self._is_named:
            return specs[UNNAMED]
        for name, spec in specs.items():
            if not spec.is_static:
                raise DataError(
                    f"preprocessing: the array {name} has samples {spec}, which differ in size; allowed for "
                    "samples of several named arrays: one shape; add resize, center_crop or random_crop with "
                    f"'of: {name}', or pad it in the dataset"
                )
        return SampleSpec.of_named(specs)

    def prepare(self, sample: AnySample) -> AnySample:
        """Apply the operations before the first random one: what they return is the same in every pass.

        Returns: an array of `prepared_spec`; if there is none, what `Pipeline.prepare` returns, by name.

        Raises:
            UnusableSampleError: if an operation cannot use this sample.
        """
        given = self._arrays(sample)
        found = {name: each.prepare(given[name]) for name, each in self._by_name.items()}
        if self.prepared_spec is not None:
            return self.prepared_spec.packed(cast(Mapping[str, NDArray[Any]], found))
        return found if self._is_named else found[UNNAMED]

    def complete(self, prepared: AnySample, rng: np.random.Generator | None) -> Mapping[str, NDArray[Any]]:
        """Apply the rest of the operations before those on pairs to what `prepare` returned; same errors.

        Args:
            prepared: is not written to.
            rng: the sample's random stream; None in validation.

        Returns: C-contiguous arrays in the machine's byte order, by name.
        """
        if self._is_named and isinstance(prepared, np.ndarray):
            assert self.prepared_spec is not None
            prepared = self.prepared_spec.unpacked(prepared)
        given = self._arrays(prepared)
        return {name: each.complete(given[name], rng) for name, each in self._by_name.items()}

    def _arrays(self, sample: AnySample) -> Mapping[str, RawSample]:
        return sample if isinstance(sample, Mapping) else {UNNAMED: sample}

    def finish(self, sample: NDArray[Any]) -> NDArray[Any]:
        """Apply the operations after those on pairs, which samples of named arrays do not have."""
        return self._by_name[UNNAMED].finish(sample)


def _is_float(spec: SampleSpec | None) -> bool:
    return spec is not None and np.dtype(spec.dtype).kind == "f"


def _refuse_names(of: Sequence[Sequence[str]], key: str) -> None:
    for index, names in enumerate(of):
        if names:
            raise ConfigError(
                (
                    f"{key}.{index}.of: got {', '.join(names)}, allowed for samples of one array "
                    "without a name: leave it out",
                )
            )


def _meant(
    place: str, operation: AnyOperation, names: Sequence[str], specs: Mapping[str, SampleSpec | None]
) -> Sequence[str]:
    """The arrays that an operation is for: those named, or the only one that it can work on."""
    known = ", ".join(specs)
    if isinstance(operation, MixingOperation):
        name = operation.name
        raise ConfigError(
            (f"{place}: {name}: samples of several named arrays ({known}) cannot be mixed; remove it",)
        )
    for name in names:
        if name not in specs:
            raise ConfigError((f"{place}.of: got {name!r}{did_you_mean(name, specs)}, allowed: {known}",))
    if names or len(specs) == 1:
        return names or list(specs)
    possible = [name for name, spec in specs.items() if _takes(operation, spec)]
    if len(possible) == 1:
        return possible
    can = f"it can work on {', '.join(possible)}" if possible else "it can work on none of them"
    raise ConfigError(
        (
            f"{place}: it is not clear which array is meant: samples have {known}, and {can}; add "
            f"'of: {(possible or list(specs))[0]}' beside the operation",
        )
    )


def _takes(operation: AnyOperation, spec: SampleSpec | None) -> bool:
    if isinstance(operation, CustomOperation):  # its code is not called to find out
        return operation.spec_function is not None or spec is not None
    try:
        operation.output_spec(spec)
    except OperationError:
        return False
    return True


def _spec_after(place: str, operation: AnyOperation, spec: SampleSpec | None) -> SampleSpec | None:
    try:
        return operation.output_spec(spec)
    except OperationError as error:
        raise ConfigError((f"{place}.{error}",)) from None
