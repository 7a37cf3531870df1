"""The operations of `augment`: those of `preprocessing`, on the training samples of one DNN alone."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from numpy.typing import NDArray

from hpcbal.data.dataset import BadSample, UnusableSampleError, describe_nonfinite, evenly, is_finite
from hpcbal.data.pipeline import SampleStreams, build_operations
from hpcbal.data.pipelines import Pipelines
from hpcbal.data.source import PreprocessedSamples
from hpcbal.data.spec import SampleSpec
from hpcbal.errors import ConfigError, DataError, HpcbalError
from hpcbal.user_code import is_ctrl_c, summary

if TYPE_CHECKING:
    from hpcbal.config import DnnConfig

log = logging.getLogger(__name__)


class Augmentation:
    """Changes training samples as they travel, before the operations that are left for the device.

    What is drawn depends on seed, list of operations, moment and sample only. So DNNs with equal lists see
    equal samples, whatever slots and steps they have.

    Args:
        dnn: has at least one operation in `augment`.
        spec: of samples as they travel, and of the result.
        seed: of the run, >= 0.

    Raises:
        ConfigError: if an operation does not fit, or shape or type would change.
        InputError: if nothing exists at the import path of an operation.
        UserCodeError: if an operation of the user raises.
    """

    def __init__(self, dnn: DnnConfig, spec: SampleSpec, seed: int) -> None:
        self._key = key = f"DNN {dnn.name}: augment"
        operations = build_operations([(step.name, step.args) for step in dnn.augment], key)
        of = [step.of for step in dnn.augment]
        self._spec = spec
        self._pipeline = Pipelines(operations, of, dict(spec.parts) or spec, spec.max_bytes, key=key)
        made = self._pipeline.output_spec
        if (made.shape, made.dtype) != (spec.shape, spec.dtype):
            raise ConfigError(
                (
                    f"{key}: turns samples {spec} into {made}, allowed: the same shape and type, because "
                    "validation samples stay as they are; end it with a resize or crop to that size (a "
                    "random_crop may have padding), or move the operation that changes them to preprocessing",
                )
            )
        listed = repr([repr(operation) for operation in operations] + [each for each in of if each]).encode()
        purpose = int.from_bytes(hashlib.sha256(b"augment" + listed).digest()[:8])
        self._streams = SampleStreams(seed, purpose)
        self._may_become_nonfinite = self._pipeline.customised & self._pipeline.may_become_nonfinite

    def apply(self, sample: NDArray[Any], sample_id: int, moment: int) -> NDArray[Any]:
        """Return the changed sample, C-contiguous; does not write to `sample`.

        Args:
            sample: as it travels.
            sample_id: of the sample.
            moment: what random operations of preprocessing depend on: the pass, or the number of the draw.

        Raises:
            DataError: if an operation cannot use this sample.
        """
        try:
            given = dict(self._spec.unpacked(sample)) if self._spec.parts else sample
            prepared = self._pipeline.prepare(given)
            arrays = self._pipeline.complete(prepared, self._streams.stream(moment, sample_id))
            for name, made in arrays.items():
                if not made.size:
                    raise UnusableSampleError(f"it is empty (shape {made.shape}) afterwards")
                if name in self._may_become_nonfinite and not is_finite(made):
                    raise UnusableSampleError(f"{describe_nonfinite(made)} afterwards")
        except MemoryError:  # the rank is in trouble, not the sample
            raise
        except BaseException as error:  # a user's operation may raise anything
            if is_ctrl_c(error):
                raise
            reason = str(error) if isinstance(error, HpcbalError) else summary(error)
            raise DataError(f"{self._key}: sample {sample_id}: {reason}") from error
        return self._spec.packed(arrays)


def check_augmentations(
    dnns: Iterable[DnnConfig],
    source: PreprocessedSamples,
    seed: int,
    joined: Collection[str] = (),
    num_samples: int = 8,
) -> dict[str, str]:
    """Try what DNNs do to their training samples, before anything is trained.

    Args:
        joined: names of DNNs that have joined the run, and fail alone.
        num_samples: training samples that are tried, taken evenly; those that are broken are skipped.

    Returns: why DNNs of `joined` cannot augment, by name.

    Raises:
        ConfigError, InputError, UserCodeError: see `Augmentation`; if it is not of `joined`.
        DataError: likewise, if an operation cannot use a sample.
    """
    # Equal lists do the same; as text, because arguments of the user's operations may be lists.
    alike: dict[str, list[DnnConfig]] = {}
    for dnn in sorted(dnns, key=lambda dnn: dnn.name in joined):  # a run's own DNNs come first
        if dnn.augment:
            alike.setdefault(repr(dnn.augment), []).append(dnn)
    problems: dict[str, str] = {}
    augmentations: dict[str, Augmentation] = {}

    @contextmanager
    def trying(listed: str) -> Iterator[None]:
        try:
            yield
        except HpcbalError as error:
            first = alike[listed][0].name
            if first not in joined:
                raise
            log.info("DNN %s has joined, and fails alone", first, exc_info=True)
            text = str(error).removeprefix(f"DNN {first}: ")
            problems.update({dnn.name: text for dnn in alike[listed]})
            augmentations.pop(listed, None)

    for listed, of_list in alike.items():
        with trying(listed):
            augmentations[listed] = Augmentation(of_list[0], source.sample_spec, seed)
    if not augmentations:
        return problems
    for sample_id in source.train_ids[evenly(source.num_train, num_samples)].tolist():
        try:
            sample, label = source.sample(sample_id, 0, training=True)
        except BadSample:
            continue
        if source.mixes:
            sample, _ = source.mixed(sample_id, 0, (sample, label), None)
        for listed, augmentation in list(augmentations.items()):
            with trying(listed):
                augmentation.apply(sample, sample_id, 0)
    return problems
