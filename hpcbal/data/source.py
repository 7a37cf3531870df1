"""The samples of a run: a dataset, its split, its order in each pass, and its preprocessing."""

from __future__ import annotations

import copy
import hashlib
import json
import math
import time
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from hpcbal import env
from hpcbal.data.content import CONTENT
from hpcbal.data.dataset import (
    AnySample,
    BadSample,
    Dataset,
    KeptSamples,
    Promises,
    RawSample,
    UnusableSampleError,
    describe_nonfinite,
    evenly,
    is_finite,
)
from hpcbal.data.labels import check_classes, class_labels, doubts_about
from hpcbal.data.named import has_names
from hpcbal.data.operations.base import Operation
from hpcbal.data.operations.mixing import MixingOperation
from hpcbal.data.pipeline import Mixing, Sample, SampleStreams, build_operations
from hpcbal.data.pipelines import Pipelines
from hpcbal.data.sizes import RANDOM_ORDER, SizeOrder, declared_sizes, declared_weights
from hpcbal.data.spec import LabelSpec, SampleSpec
from hpcbal.data.split import drawn_ids, ids_for_test, split_ids
from hpcbal.errors import DataError, HpcbalError, PolicyError
from hpcbal.policies.folds import BalancedOrder, deal_folds, in_folds, sample_order
from hpcbal.policies.samples.within_batch import order_in_windows
from hpcbal.processes import leave_if_forked
from hpcbal.user_code import is_ctrl_c, summary

if TYPE_CHECKING:
    from hpcbal.config import EnsembleConfig

__all__ = ["BadSample", "KeptSamples", "PreprocessedSamples", "open_source"]


class PreprocessedSamples:
    """Preprocessed samples by id, the same in every process and for any number of processes.

    Attributes:
        num_train: training samples.
        num_validation: validation samples.
        num_classes: number of classes of the dataset.
        sample_spec: spec of what `sample` returns.
        on_device: elementwise operations that are left for the trainers; see `Pipeline`.
        label_spec: spec of its labels.
        sizes: relative size of each sample by id, as the dataset declares it, shape (len(dataset),); None if
            it declares none.
        sample_weights: how much each sample counts in the loss, by id, as the dataset declares it, float64,
            shape (len(dataset),); None: all count 1.
        order: how the training samples of a pass are ordered.
        fold_of: fold of each training sample, shape (num_train,); None without folds.
        cache: where samples are kept from one pass to the next; None: each is read in every pass.
        reading: id of the sample that the dataset is reading now, and `time.monotonic` when it began; None
            between two reads.
        identity: digest of all that the stream depends on, but for the content of files.
    """

    def __init__(
        self,
        dataset: Dataset,
        operations: Sequence[Operation | MixingOperation],
        seed: int,
        validation_fraction: float,
        max_sample_bytes: int | None = None,
        order: SizeOrder = RANDOM_ORDER,
        *,
        on_device: bool = False,
        test_fraction: float = 0.0,
        max_samples: int | None = None,
        balanced: bool = False,
        of: Sequence[Sequence[str]] | None = None,
        num_folds: int = 0,
    ) -> None:
        """Split the dataset and check the operations against it; reads no sample.

        Args:
            dataset: samples with labels.
            operations: in the order of application.
            seed: seed of the run, >= 0; fixes the split, the order and all random operations.
            validation_fraction: share of the samples held out, in [0, 1), 0 for none; unused if the dataset
                has its own `validation_ids`.
            max_sample_bytes: upper bound, after all operations, for samples whose size is not known in
                advance.
            order: of the training samples of a pass.
            on_device: whether elementwise operations at the end are left for the trainers.
            test_fraction, max_samples: see `ids_for_test` and `drawn_ids`.
            balanced: whether training samples of all classes are equally frequent, see `BalancedOrder`.
            of: with each operation, the arrays that it is for, see `Pipelines`; None: it says nothing.
            num_folds: of the training samples; 0: none.

        Raises:
            ConfigError: if an operation does not fit the samples.
            DataError: if the split leaves no training sample, or no validation sample although some were
                requested, or nothing bounds the samples, or labels cannot be mixed, or are ids of something
                else; if the dataset's sizes are wrong, or missing where `order` needs them, or labels are
                missing where `balanced` needs them; or if there are fewer training samples than folds, or
                they are mixed.
        """
        self._dataset = dataset
        self._of = tuple(map(tuple, of)) if of is not None else ((),) * len(operations)
        self._pipeline = Pipelines(
            operations, self._of, dataset.sample_spec, max_sample_bytes, on_device=on_device
        )
        self._test_ids = ids_for_test(dataset, seed, test_fraction)
        parts = split_ids(dataset, seed, validation_fraction, self._test_ids)
        self._train_ids, self._validation_ids = drawn_ids(*parts, seed, max_samples)
        self._seed = seed
        self._streams = SampleStreams(seed)
        self.num_train = len(self._train_ids)
        self.num_validation = len(self._validation_ids)
        self.num_classes = int(dataset.num_classes)
        check_classes(dataset)
        self.sample_spec: SampleSpec = self._pipeline.host_spec
        self.on_device = self._pipeline.on_device
        mixing = self._pipeline.mixing
        if mixing and dataset.label_spec.parts:
            raise DataError(
                f"preprocessing: {mixing[0].name}: samples with several named labels cannot be mixed; remove "
                "it"
            )
        self._mixing = Mixing(mixing, dataset.label_spec, self.num_classes, seed) if mixing else None
        self.label_spec: LabelSpec = dataset.label_spec if self._mixing is None else self._mixing.label_spec
        self.sizes = declared_sizes(dataset)
        self.sample_weights = declared_weights(dataset)
        self.order = order
        if order.num_batches > 1 and self.sizes is None:
            raise DataError(
                f"data.lookahead: got {order.num_batches}, but the dataset does not say how large its "
                "samples are; give it the attribute 'sizes', one number above 0 for each sample, or use 1"
            )
        self._balanced = BalancedOrder(self._classes_to_balance(), seed) if balanced else None
        self.fold_of = self._deal_folds(num_folds) if num_folds else None
        self.cache: KeptSamples | None = None
        self.reading: tuple[int, float] | None = None
        self._promises = Promises(dataset.sample_spec, dataset.label_spec, self.num_classes)
        self.identity = self._make_identity()

    @cached_property
    def fingerprint(self) -> str:
        """`identity`, and a digest of content if the dataset has one; reads some files."""
        content = getattr(self._dataset, "content_fingerprint", "")
        return f"{self.identity}{CONTENT}{content}" if content else self.identity

    @property
    def num_positions(self) -> int:
        """Positions of one pass: training samples, these fold after fold, then validation samples."""
        return self.num_train * (1 if self.fold_of is None else 2) + self.num_validation

    @property
    def train_ids(self) -> NDArray[np.int64]:
        """Ids of the training samples, ascending, shape (num_train,)."""
        return self._train_ids

    @property
    def validation_ids(self) -> NDArray[np.int64]:
        """Ids of the validation samples, ascending, shape (num_validation,)."""
        return self._validation_ids

    @property
    def test_ids(self) -> NDArray[np.int64]:
        """Ids of the samples that neither train nor validate, ascending, shape (n,), n >= 0."""
        return self._test_ids

    @property
    def indices_on_device(self) -> frozenset[int]:
        """Which of the operations are left for the trainers, by place; see `on_device`."""
        return self._pipeline.indices_on_device

    @property
    def prepared_spec(self) -> SampleSpec | None:
        """Spec of a sample before the first random operation; None while it is an encoded image."""
        return self._pipeline.prepared_spec

    def prepared_bytes(self, num_samples: int, most_bytes: int) -> dict[int, int]:
        """Read some training and validation samples, taken evenly; return their sizes before the first random
        operation.

        Args:
            num_samples: samples to read, >= 1; those that cannot be used are skipped.
            most_bytes: no more are read once eight of them have so many bytes together.

        Returns: bytes by id; empty if none can be used.
        """
        found = dict[int, int]()
        ids = np.concatenate([self._train_ids, self._validation_ids])
        for sample_id in ids[evenly(len(ids), num_samples)].tolist():
            if len(found) >= 8 and sum(found.values()) >= most_bytes:
                break
            try:
                prepared, _ = self._prepared(sample_id)
            except MemoryError:
                raise
            except BaseException as error:
                _reason(error)  # of a bad sample, which is reported when a pass comes to it
                continue
            parts = prepared.values() if isinstance(prepared, Mapping) else [prepared]
            found[sample_id] = sum(len(each) if isinstance(each, bytes) else each.nbytes for each in parts)
        return found

    @property
    def dataset(self) -> Dataset:
        """The dataset that the samples are read from."""
        return self._dataset

    @property
    def mixes(self) -> bool:
        """Whether training samples are mixed in pairs, see `mixed`."""
        return self._mixing is not None

    @property
    def is_sized(self) -> bool:
        """Whether samples differ in size: the dataset says so, or their shapes differ."""
        return self.sizes is not None or not self.sample_spec.is_static

    @property
    def mean_size(self) -> float | None:
        """Mean size of the training samples, as the dataset declares sizes; None if it declares none."""
        return None if self.sizes is None else float(self.sizes[self._train_ids].mean())

    def sizes_of(self, ids: NDArray[np.int64], samples: Sequence[NDArray[Any]]) -> NDArray[np.float64]:
        """Relative sizes of preprocessed samples, shape (n,), > 0.

        They are those that the dataset declares, or else the product of the lengths that differ between
        samples.

        Args:
            ids: of the samples, shape (n,).
            samples: what `sample` returned for them.
        """
        if self.sizes is not None:
            return self.sizes[ids]
        varying = [axis for axis, length in enumerate(self.sample_spec.shape) if length is None]
        return np.array([max(1, math.prod(each.shape[axis] for axis in varying)) for each in samples], float)

    def class_counts(self) -> NDArray[np.int64] | None:
        """Training samples by class, shape (num_classes,); None if the dataset does not list its labels."""
        classes = self._train_classes()
        return None if classes is None else np.bincount(classes[classes >= 0], minlength=self.num_classes)

    def _train_classes(self) -> NDArray[np.int64] | None:
        """Class of each training sample, -1 where the label is none; None without a list of labels."""
        labels = class_labels(self._dataset) if self._dataset.label_spec.is_class else None
        if labels is None:
            return None
        own = labels[self._train_ids]
        return np.where((own >= 0) & (own < self.num_classes), own, -1)

    def _classes_to_balance(self) -> NDArray[np.int64]:
        classes = self._train_classes()
        if classes is None or not (classes >= 0).any():
            spec = self._dataset.label_spec
            lacks = (
                f"the dataset has several labels ({', '.join(spec.by_name)}), not one class for each sample"
                if spec.parts
                else f"labels have shape {spec.shape} and type {spec.dtype}, and are no classes"
                if not spec.is_class
                else "the dataset does not list its labels"
                if classes is None
                else "no training sample has a label that is a class"
            )
            raise DataError(
                f"data.sampling: got 'balanced', but {lacks}, allowed: random, or a dataset of classes with "
                "the attribute 'labels', the class of each sample"
            )
        return classes

    def _deal_folds(self, num_folds: int) -> NDArray[np.int16]:
        if self._mixing is not None:
            name = self._pipeline.mixing[0].name
            raise DataError(
                f"preprocessing: {name}: got it beside k_fold, but it would mix samples of a fold into those "
                "that its DNN trains on; remove one of both"
            )
        try:
            return deal_folds(self.num_train, num_folds, self._seed, self._train_classes())
        except PolicyError as error:
            raise DataError(str(error)) from error

    def doubts(self) -> tuple[str, ...]:
        """Return doubts about the dataset's classes, for warnings; reads labels but no sample."""
        return doubts_about(self._dataset)

    def over(self, dataset: Dataset) -> PreprocessedSamples:
        """The same split, order and preprocessing, for samples held by another dataset."""
        other = copy.copy(self)
        other._dataset, other.cache, other.fingerprint = dataset, None, self.fingerprint
        return other

    def ids_of_pass(self, pass_index: int) -> NDArray[np.int64]:
        """Sample ids of one pass in order, shape (num_positions,).

        Training ids come first, in an order that depends only on seed, pass, `order`, sizes, and the classes
        if they are balanced; then samples may repeat or be missing. With folds, they follow once more, fold
        after fold. The validation ids come last. Except for the first part, the order is always the same.
        """
        parts = [self._train_ids[self._order_of(pass_index)[0]], self._validation_ids]
        if self.fold_of is not None:
            parts.insert(1, self._train_ids[in_folds(self.fold_of)])
        return np.concatenate(parts)

    def moments_of_pass(self, pass_index: int) -> NDArray[np.int64] | None:
        """Return what random operations on training samples depend on in place of the pass; None: the pass.

        Returns: for `sample` and `mixed` instead of the pass: how often the sample at each position was drawn
            before, shape (num_train,), so no two draws of a sample have the same random numbers.
        """
        return None if self._balanced is None else self._order_of(pass_index)[1]

    def _order_of(self, pass_index: int) -> tuple[NDArray[np.int64], NDArray[np.int64] | None]:
        if self._balanced is None:
            order, moments = sample_order(self.num_train, self._seed, pass_index), None
        else:
            order, moments = self._balanced.of_pass(pass_index)
        if self.order.num_batches > 1 and self.sizes is not None:
            sizes, windows = self.sizes[self._train_ids[order]], self.order
            by_size = order_in_windows(sizes, windows.batch_size, windows.num_batches, self._seed, pass_index)
            order, moments = order[by_size], None if moments is None else moments[by_size]
        return order, moments

    def sample(self, sample_id: int, pass_index: int, training: bool) -> tuple[NDArray[Any], NDArray[Any]]:
        """Read and preprocess one sample, except for the operations in `on_device`.

        Args:
            sample_id: 0..len(dataset)-1.
            pass_index: >= 0; only random operations depend on it.
            training: False turns random operations off.

        Returns:
            The C-contiguous sample of `sample_spec`, and the label of `label_spec`. The sample may share
            memory with the dataset: copy it, do not write to it. If the source `mixes`, a training sample is
            not ready until it has gone through `mixed`.

        Raises:
            BadSample: if it cannot be read, decoded or preprocessed, is not what the dataset promised, is
                empty, or contains NaN or infinite values.
        """
        try:
            prepared, label = self._prepared(sample_id)
            random = training and self._pipeline.is_random
            rng = self._streams.stream(pass_index, sample_id) if random else None
            arrays = self._pipeline.complete(prepared, rng)
            for name, each in arrays.items():
                self._check_made(name, each)
            array = self.sample_spec.packed(arrays)
            if self.cache is not None and isinstance(prepared, np.ndarray):  # nothing is wrong with it
                self.cache.put(sample_id, prepared, label)
            if self._mixing is None:
                return array, label
            return array if training else self._pipeline.finish(array), self._mixing.label(label)
        except MemoryError:  # the rank is in trouble, not the sample
            raise
        except BaseException as error:  # whatever the dataset raises affects only this sample
            raise BadSample(sample_id, self.where(sample_id), _reason(error)) from error

    def _check_made(self, name: str, array: NDArray[Any]) -> None:
        """Check an array after preprocessing.

        Raises:
            UnusableSampleError: if it is empty or too large, or has NaN or infinite values.
        """
        of = f"{name}: " if name else ""
        if not array.size:  # a model's mean over no time steps would be NaN, and its network would fail
            raise UnusableSampleError(f"{of}it is empty (shape {array.shape} after preprocessing)")
        if array.nbytes > self.sample_spec.max_bytes and not self.sample_spec.is_static:
            output = self._pipeline.output_spec
            num_bytes = array.size * np.dtype(output.dtype).itemsize
            raise UnusableSampleError(
                f"{num_bytes} bytes after preprocessing (shape {array.shape}), allowed: at most "
                f"{output.max_bytes}; raise dataplane.max_sample_bytes, or add resize or a crop"
            )
        if name in self._pipeline.may_become_nonfinite and not is_finite(array):
            raise UnusableSampleError(of + describe_nonfinite(array))

    def copy_kept(self, ids: NDArray[np.int64], samples: NDArray[Any], labels: NDArray[Any]) -> bool:
        """Copy samples that `sample` would return, whatever the pass, out of the cache.

        Args:
            ids: of the samples, shape (n,).
            samples, labels: arrays to write to, C-contiguous, shape (n, ...).

        Returns: whether all are written; False if one is not in the cache, or something follows on what is.
        """
        if self.cache is None or self._mixing is not None or not self._pipeline.is_fixed:
            return False
        return self.cache.copy(ids, samples, labels)

    def ask(self, ids: Iterable[int]) -> None:
        """Say which samples are needed next: those in the caches of other nodes begin to come.

        What was asked for before is no longer needed.
        """
        if self.cache is not None:
            wanted = tuple(ids)
            if wanted:
                self.cache.ask(wanted)
            else:
                self.cache.settle()

    def is_coming(self, sample_id: int) -> bool:
        """Whether `sample` had better wait, because the sample may come from another node."""
        return self.cache is not None and self.cache.is_coming(sample_id)

    def keep(self, sample_id: int) -> None:
        """Put a sample into the cache as it is before the first random operation.

        Raises:
            BadSample: as `sample` does, but for what only the operations after that would find.
        """
        assert self.cache is not None
        if self._pipeline.may_become_nonfinite:  # only the end of the pipeline shows that nothing is wrong
            self.sample(sample_id, 0, training=False)
            return
        try:
            prepared, label = self._prepared(sample_id)
            if isinstance(prepared, np.ndarray):
                self.cache.put(sample_id, prepared, label)
        except MemoryError:  # the rank is in trouble, not the sample
            raise
        except BaseException as error:  # as in `sample`
            raise BadSample(sample_id, self.where(sample_id), _reason(error)) from error

    def mixed(self, sample_id: int, pass_index: int, own: Sample, partner: Sample | None) -> Sample:
        """Mix a training sample with another one of its pass; only if the source `mixes`.

        Args:
            sample_id: of the sample.
            pass_index: >= 0.
            own: what `sample` returned for it.
            partner: what `sample` returned for the other one; None leaves the sample as it is.

        Returns: the sample of `sample_spec`, and its label. It may share memory with `own`.
        """
        assert self._mixing is not None
        array, label = own if partner is None else self._mixing.mix(sample_id, pass_index, own, partner)
        return self._pipeline.finish(array), label

    def read(self, sample_id: int) -> tuple[RawSample, NDArray[Any]]:
        """Read one sample as the dataset returns it, and its label.

        Raises:
            BadSample: if it cannot be read, is not what the dataset promised, or contains NaN or infinite
                values.
        """
        try:
            raw, label = self._read(sample_id)
            assert not isinstance(raw, Mapping), "named arrays are refused where parts are held"
            if isinstance(raw, np.ndarray) and raw.dtype.kind == "f" and not is_finite(raw):
                raise UnusableSampleError(describe_nonfinite(raw))
            return raw, label
        except MemoryError:  # the rank is in trouble, not the sample
            raise
        except BaseException as error:  # as in `sample`
            raise BadSample(sample_id, self.where(sample_id), _reason(error)) from error

    def _prepared(self, sample_id: int) -> tuple[AnySample, NDArray[Any]]:
        """Return what is the same in every pass: the sample before random operations, and its label."""
        kept = None if self.cache is None else self.cache.get(sample_id)
        if kept is not None:
            return kept
        raw, label = self._read(sample_id)
        return self._pipeline.prepare(raw), label

    def _read(self, sample_id: int) -> tuple[AnySample, NDArray[Any]]:
        self.reading = (sample_id, time.monotonic())
        try:
            returned = self._dataset.read(sample_id)
        finally:
            self.reading = None
            leave_if_forked("the dataset")
        return self._promises.check(returned)

    def where(self, sample_id: int) -> str:
        """Return the dataset's name of a sample, such as a file name."""
        try:
            return self._dataset.describe(sample_id)
        except BaseException as error:  # an error here must not hide why the sample is bad
            return f"describe() raised {_reason(error)}"

    def _make_identity(self) -> str:
        facts = {
            "length": len(self._dataset),
            "num_classes": self.num_classes,
            "input": str(self._dataset.sample_spec),
            "label": repr(self.label_spec),
            "output": str(self._pipeline.output_spec),
            "operations": [repr(operation) for operation in self._pipeline.operations],
            "seed": self._seed,
            "dataset": str(getattr(self._dataset, "fingerprint", "")),
        }
        if has_names(self._dataset):
            facts["names"] = [self._of, str(self.sample_spec), repr(self.label_spec.by_name)]
        if not self._pipeline.is_exact:
            facts["decoding"] = "scaled"
        if self.order.num_batches > 1:
            facts["order"] = repr(self.order)
        digest = hashlib.sha256(json.dumps(facts, sort_keys=True).encode())
        if self.sizes is not None:  # they decide on orders, and on who draws what
            digest.update(self.sizes.astype("<f8").tobytes())
        if self.sample_weights is not None:
            digest.update(self.sample_weights.astype("<f4").tobytes())
        if self._balanced is not None:
            digest.update(b"balanced" + self._classes_to_balance().astype("<i8").tobytes())
        for ids in (self._train_ids, self._validation_ids):
            digest.update(ids.astype("<i8").tobytes())
        if self.fold_of is not None:
            digest.update(b"folds" + self.fold_of.astype("<i2").tobytes())
        return digest.hexdigest()


def open_source(config: EnsembleConfig) -> PreprocessedSamples:
    """Open the dataset that the config names, with its split and preprocessing.

    Raises:
        ConfigError: if an operation is wrong.
        DataError: if the dataset cannot be opened, or does not fit; see also `check_largest`.
        InputError: if nothing exists at the import path.
    """
    from hpcbal.data.held_out import WithOwnValidation, open_dataset, open_held_out

    operations = build_operations([(step.name, step.args) for step in config.preprocessing])
    dataset = open_dataset(config.data.dataset, env.expanded(config.data.args, "data.args"))
    if config.data.validation is not None:
        dataset = WithOwnValidation(dataset, open_held_out(config, "validation", dataset))
    source = PreprocessedSamples(
        dataset,
        operations,
        seed=config.seed,
        validation_fraction=config.data.validation_fraction,
        max_sample_bytes=config.dataplane.max_sample_bytes,
        order=SizeOrder(max(dnn.batch_size for dnn in config.dnns), config.data.lookahead),
        on_device=config.dataplane.on_device,
        test_fraction=config.data.test_fraction,
        max_samples=config.data.max_samples,
        balanced=config.data.sampling == "balanced",
        of=[step.of for step in config.preprocessing],
        num_folds=config.num_folds,
    )
    if config.data.access != "shared" and has_names(dataset):
        raise DataError(
            f"data.access: got {config.data.access}, but samples of {config.data.dataset} have several named "
            "arrays or labels, allowed for these: shared"
        )
    if config.data.access == "shared" and config.balance.samples == "within-batch":
        check_largest(source, config.balance.max_work_per_slot)
    return source


def check_largest(source: PreprocessedSamples, max_work: float | None) -> None:
    """Check that a slot may take the largest sample, as far as the dataset declares sizes.

    Args:
        max_work: most work of a slot in a step, in the unit of the sizes; None: no limit.

    Raises:
        DataError: if a sample is larger.
    """
    if source.sizes is None or max_work is None:
        return
    too_large = np.flatnonzero(source.sizes > max_work)
    if len(too_large):
        largest = int(np.argmax(source.sizes))
        are, these = ("is", "this sample") if len(too_large) == 1 else ("are", "these samples")
        raise DataError(
            f"balance.max_work_per_slot: got {max_work:g}, but {len(too_large)} of {len(source.sizes)} "
            f"samples {are} larger, the largest with {source.sizes[largest]:g}: {source.where(largest)}; "
            f"raise the limit, or leave {these} out"
        )


def _reason(error: BaseException) -> str:
    """Return why a sample is bad; Ctrl-C is no reason, and is raised again."""
    if is_ctrl_c(error):
        raise error
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    if isinstance(error, HpcbalError):
        return str(error)
    return summary(error)
