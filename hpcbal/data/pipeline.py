"""The chain of operations in the config, checked before any sample is read, and mixing in pairs."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hpcbal.data.arrays import Affine
from hpcbal.data.custom_operation import CustomOperation, custom_operation
from hpcbal.data.dataset import RawSample
from hpcbal.data.operations import OPERATIONS
from hpcbal.data.operations.base import ElementwiseOperation, Operation, OperationError
from hpcbal.data.operations.decode import ScaledDecode
from hpcbal.data.operations.mixing import MixingOperation, weighted_mean
from hpcbal.data.spec import LabelSpec, SampleSpec
from hpcbal.errors import ConfigError, DataError, InputError, UserCodeError


class SampleStreams:
    """Random generators keyed by (seed, pass index, sample id), a purpose and nothing else.

    Philox is a counter-based generator: the seed gives the key, and sample id and pass index are two words of
    its 256-bit counter. So the streams of two samples never overlap (each has 2**64 blocks), and starting a
    stream only sets the counter: about 1.3 microseconds, against 9 for a new generator.

    Source: [PHILOX].
    """

    def __init__(self, seed: int, purpose: int = 0x5A3D1E) -> None:
        """Make generators that are independent of those with another seed or purpose.

        Args:
            seed: seed of the run, >= 0.
            purpose: what the numbers are for, >= 0.
        """
        key = np.random.SeedSequence((seed, purpose)).generate_state(2, np.uint64)
        self._bits = np.random.Philox(key=key)
        self._generator = np.random.Generator(self._bits)
        self._start = self._bits.state

    def stream(self, pass_index: int, sample_id: int) -> np.random.Generator:
        """The stream of one sample in one pass, from its start.

        Returns: a generator that is valid until the next call of this method.
        """
        counter = self._start["state"]["counter"]
        counter[:] = (0, sample_id, pass_index, 0)
        self._bits.state = self._start  # copies, and drops numbers buffered from the previous stream
        return self._generator


class Pipeline:
    """Operations in order, for samples of one spec.

    Attributes:
        operations: as given.
        mixing: those of them that work on pairs of samples; `run` stops before them.
        input_spec: what the dataset returns; None for encoded images.
        output_spec: spec of what the model is called with, after all operations; always bounded.
        host_spec: spec of what `finish` returns: `output_spec`, unless operations are left for the device.
        prepared_spec: spec of what `prepare` returns; None if nothing comes before the first random operation
            on encoded images.
        on_device: the operations left for the device, in order; they turn `host_spec` into `output_spec`.
        is_random: whether training samples differ from pass to pass.
        is_fixed: whether `complete` has nothing to do.
        is_custom: whether it runs a user's code.
        is_exact: whether all operations run one by one; else the first ones run together, see `ScaledDecode`.
    """

    def __init__(
        self,
        operations: Sequence[Operation | MixingOperation],
        input_spec: SampleSpec | None,
        max_sample_bytes: int | None = None,
        *,
        on_device: bool = False,
        key: str = "preprocessing",
    ) -> None:
        """Check that each operation can work on the output of the one before it.

        Args:
            operations: may be empty if the dataset returns arrays. After operations on pairs only elementwise
                ones may follow, which commute with them.
            input_spec: the dataset's `sample_spec`.
            max_sample_bytes: upper bound of the result for samples whose size is not known in advance.
            on_device: whether to leave the elementwise operations at the end for the device, if they make
                samples larger.
            key: what lists the operations, for messages.

        Raises:
            ConfigError: if an operation does not fit; the message names its place in the list.
            UserCodeError: if a user's operation raises.
            DataError: for encoded images without `decode`, or samples without a bound.
        """
        self.operations = tuple(operations)
        self.input_spec = input_spec
        self.is_random = any(operation.is_random for operation in operations)
        self.is_custom = any(isinstance(operation, CustomOperation) for operation in operations)
        spec = input_spec
        specs = [spec]
        for index, operation in enumerate(operations):
            try:
                spec = operation.output_spec(spec)
                specs.append(spec)
            except OperationError as error:
                raise ConfigError((f"{key}.{index}.{error}",)) from None
        if spec is None:
            raise DataError(
                "preprocessing: the dataset gives encoded images; put 'decode: {mode: rgb}' (or gray) first"
            )
        self.output_spec = _bounded(spec, max_sample_bytes)
        num_on_host = _num_on_host(self.operations, specs) if on_device else len(self.operations)
        self.mixing = tuple(each for each in self.operations if isinstance(each, MixingOperation))
        num_before = self.operations.index(self.mixing[0]) if self.mixing else num_on_host
        # With each operation, what it promises to return if that must be checked for each sample.
        self._before: list[tuple[Operation, SampleSpec | None]] = [
            (operation, promised if isinstance(operation, CustomOperation) else None)
            for operation, promised in zip(self.operations[:num_before], specs[1:], strict=False)
            if not isinstance(operation, MixingOperation)
        ]
        # Up to the first random operation, samples are the same in every pass.
        is_random = [operation.is_random for operation, _ in self._before]
        num_fixed = is_random.index(True) if True in is_random else len(is_random)
        scaled = ScaledDecode.of(self.operations[:num_fixed])
        if scaled is None:  # then a random crop comes before the resize, and they cannot be taken apart
            scaled = ScaledDecode.of(self.operations[:num_before])
        self.is_exact = scaled is None
        if scaled is not None:
            self._before[: scaled.num_operations] = [(scaled, None)]
            num_fixed = 0 if scaled.is_random else num_fixed - scaled.num_operations + 1
        after = self.operations[num_before + len(self.mixing) : num_on_host]
        self._after = [each for each in after if isinstance(each, ElementwiseOperation)]
        assert len(self._after) == len(after), "the configuration refuses another order"
        left = self.operations[num_on_host:]
        self.on_device: tuple[Affine, ...] = tuple(
            operation.affine for operation in left if isinstance(operation, ElementwiseOperation)
        )
        last = specs[num_on_host]
        self.host_spec = self.output_spec
        if left and last is not None:  # elementwise operations change the type, and nothing else
            self.host_spec = self.output_spec.with_dtype(last.dtype)
        self._fixed, self._rest = self._before[:num_fixed], self._before[num_fixed:]
        self.is_fixed = not self._rest
        self.prepared_spec = input_spec
        for operation, _ in self._fixed:
            self.prepared_spec = operation.output_spec(self.prepared_spec)
        before = specs[num_before]
        self._dtype = np.dtype(self.host_spec.dtype if before is None else before.dtype)

    def run(self, sample: RawSample, rng: np.random.Generator | None) -> NDArray[Any]:
        """Preprocess one sample up to the operations on pairs; `finish` does what is left for the host.

        Args:
            sample: a sample of `input_spec`.
            rng: the sample's random stream; None in validation.

        Returns: a C-contiguous array, in the machine's byte order; of `host_spec` if no operations on pairs
            follow.

        Raises:
            UnusableSampleError: if an operation cannot use this sample.
        """
        return self.complete(self.prepare(sample), rng)

    def prepare(self, sample: RawSample) -> RawSample:
        """Apply the operations before the first random one: what they return is the same in every pass.

        Args:
            sample: a sample of `input_spec`.

        Returns: an array of `prepared_spec`, C-contiguous and in the machine's byte order; encoded images as
            they are if `prepared_spec` is None.

        Raises:
            UnusableSampleError: if an operation cannot use this sample.
        """
        for operation, _ in self._fixed:
            sample = operation.apply(sample, None)
        if self.prepared_spec is None:
            return sample
        # A stored copy must be the same to the last bit: sums depend on the order of numbers in memory.
        return np.asarray(sample, np.dtype(self.prepared_spec.dtype), order="C")

    def complete(self, prepared: RawSample, rng: np.random.Generator | None) -> NDArray[Any]:
        """Do the rest of `run` with what `prepare` returned, which is not written to; same errors."""
        sample = prepared
        for operation, promised in self._rest:
            sample = operation.apply(sample, rng)
            if promised is not None:
                assert isinstance(operation, CustomOperation)
                operation.check_returned(sample, promised)
        return np.ascontiguousarray(sample, self._dtype)

    def finish(self, sample: NDArray[Any]) -> NDArray[Any]:
        """Apply the operations after those on pairs, except for those left for the device.

        Args:
            sample: what `run` returned, mixed or not.

        Returns: a C-contiguous array of `host_spec`.
        """
        for operation in self._after:
            sample = operation.apply(sample, None)
        return sample


def build_operations(
    wanted: Sequence[tuple[str, Mapping[str, Any]]], key: str = "preprocessing"
) -> tuple[Operation | MixingOperation, ...]:
    """Make operations from their names and arguments.

    Args:
        wanted: (name or import path, arguments) in order, as in the config's `preprocessing`.
        key: what lists them, for messages.

    Raises:
        ConfigError: for unknown names, and unknown, missing or wrong arguments; all of them at once.
        UserCodeError: if a user's operation raises when it is made.
    """
    operations: list[Operation | MixingOperation] = []
    problems: list[str] = []
    for index, (name, args) in enumerate(wanted):
        try:
            operations.append(_build(name, args, key))
        except UserCodeError:
            raise
        except InputError as error:
            problems.append(f"{key}.{index}.{error}")
    if problems:
        raise ConfigError(problems)
    return tuple(operations)


def _build(name: str, args: Mapping[str, Any], key: str) -> Operation | MixingOperation:
    if ":" in name:
        return custom_operation(name, args, key)
    if name not in OPERATIONS:
        raise OperationError(f"{name}: unknown operation, allowed: {_allowed(name, list(OPERATIONS))}")
    operation: Operation | MixingOperation = OPERATIONS[name](**args)
    return operation


def _num_on_host(operations: Sequence[object], specs: Sequence[SampleSpec | None]) -> int:
    """How many operations must run before samples travel.

    Operations are left for the device only as far as samples grow by them, and only if they start from
    integers: other samples are checked for NaN and infinite values after the last operation.

    Args:
        operations: all of them, in order.
        specs: spec before each operation, and after the last one.
    """
    best = first = len(operations)
    while first > 0 and isinstance(operations[first - 1], ElementwiseOperation):
        first -= 1
        spec, best_spec = specs[first], specs[best]
        assert spec is not None
        assert best_spec is not None
        dtype = np.dtype(spec.dtype)
        if dtype.kind in "biu" and dtype.itemsize < np.dtype(best_spec.dtype).itemsize:
            best = first
    return best


def _allowed(given: str, names: list[str]) -> str:
    close = difflib.get_close_matches(given, names, n=1)
    return ", ".join(names) + (f" (did you mean {close[0]!r}?)" if close else "")


def _bounded(spec: SampleSpec, max_sample_bytes: int | None) -> SampleSpec:
    if spec.is_bounded:
        return spec
    if max_sample_bytes is None:
        raise DataError(
            f"preprocessing: samples {spec} differ in size and nothing bounds them; "
            "add resize, center_crop or random_crop, or set dataplane.max_sample_bytes"
        )
    return SampleSpec.of(spec.shape, spec.dtype, max_sample_bytes)


Sample = tuple[NDArray[Any], NDArray[Any]]
"""A sample and its label."""

_STREAM = 0x313C5
"""Separates the random streams from those of the operations on single samples."""


class Mixing:
    """Mixes each training sample with a partner, by one of the operations, all of them equally likely.

    What is drawn depends on seed, pass and sample only.

    Attributes:
        of_classes: whether the dataset's labels are classes; labels are then distributions over them.
        label_spec: spec of the labels of a run.

    Args:
        operations: at least one.
        label: spec of the dataset's labels.
        num_classes: of the dataset.
        seed: of the run, >= 0.

    Raises:
        DataError: if labels have no mean, or are those of places and an operation is not even.
    """

    def __init__(
        self, operations: Sequence[MixingOperation], label: LabelSpec, num_classes: int, seed: int
    ) -> None:
        self.of_classes = label.is_class
        if not self.of_classes and np.dtype(label.dtype).kind != "f":
            names = " and ".join(operation.name for operation in operations)
            raise DataError(
                f"preprocessing: {names}: the dataset's labels are {label}, allowed: one class for each "
                "sample, or floating-point numbers; declare numbers as float32 in label_spec, or remove it"
            )
        uneven = [operation.name for operation in operations if not operation.is_even]
        if uneven and len(label.shape) > 1:
            raise DataError(
                f"preprocessing: {uneven[0]}: the dataset's labels are {label}, which may be about each "
                "place of an image, allowed: a class, a number or one list of numbers for each sample; use "
                "mixup, or remove it"
            )
        self.label_spec = LabelSpec((num_classes,), "float32") if self.of_classes else label
        self._operations = tuple(operations)
        self._num_classes = num_classes
        self._streams = SampleStreams(seed, _STREAM)

    def label(self, label: NDArray[Any]) -> NDArray[Any]:
        """The label of a sample that is not mixed: a class as a distribution (one-hot)."""
        if not self.of_classes:
            return label
        one_hot = np.zeros(self._num_classes, np.float32)
        one_hot[label] = 1.0
        return one_hot

    def mix(self, sample_id: int, pass_index: int, own: Sample, partner: Sample) -> Sample:
        """Mix a sample with its partner; writes to neither of them.

        Args:
            sample_id: of the sample.
            pass_index: >= 0.
            own: the sample, with a label of `label_spec`.
            partner: likewise.
        """
        rng = self._streams.stream(pass_index, sample_id)
        number = int(rng.integers(len(self._operations))) if len(self._operations) > 1 else 0
        operation = self._operations[number]
        if operation.p < 1.0 and rng.random() >= operation.p:
            return own
        mixed, weight = operation.mix(own[0], partner[0], rng)
        return mixed, weighted_mean(own[1], partner[1], weight)
