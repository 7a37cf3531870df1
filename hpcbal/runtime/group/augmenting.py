"""Augment the training batches of one DNN on its own ranks, in the thread that fetches them."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

from numpy.typing import NDArray

from hpcbal.data.augmentation import Augmentation
from hpcbal.dataplane.reader import Batch
from hpcbal.dataplane.stream import StreamSpec
from hpcbal.policies.selection import Selection
from hpcbal.runtime.balance.step import Step
from hpcbal.runtime.group.feeding import Batches, BatchMemory
from hpcbal.training.groups import USER_ERRORS, as_exception


class AugmentedBatches(Batches):
    """The batches of another source; training samples are changed by the DNN's `augment`.

    Changed samples are in memory of their own: other DNNs read the same ones in the ring. The time counts as
    this rank's preprocessing, so balancing knows it.

    Args:
        batches: the source.
        augmentation: of the DNN.
        spec: the stream.
    """

    def __init__(self, batches: Batches, augmentation: Augmentation, spec: StreamSpec) -> None:
        self.balancer = batches.balancer
        self._batches = batches
        self._augmentation = augmentation
        self._num_train = spec.num_train
        self._buffers = BatchMemory(spec, 0)
        self._poll: Callable[[], None] = lambda: None

    def set_poll(self, poll: Callable[[], None]) -> None:
        """Call `poll` also before each sample."""
        self._batches.set_poll(poll)
        self._poll = poll

    def step_performed(self) -> None:
        self._batches.step_performed()

    def release(self, pass_index: int, step: Step) -> None:
        self._batches.release(pass_index, step)

    def plan(self, pass_index: int, number: int, own: Selection) -> Callable[[], Step]:
        fetch = self._batches.plan(pass_index, number, own)
        return fetch if own.start >= self._num_train else partial(self._fetch, pass_index, number, fetch)

    def _fetch(self, pass_index: int, number: int, fetch: Callable[[], Step]) -> Step:
        step = fetch()
        began = time.perf_counter()
        out = self._buffers.of(number, len(step.batch))
        x, error = augmented(step.batch, self._augmentation, pass_index, self._poll, out)
        seconds = time.perf_counter() - began
        return replace(
            step,
            batch=replace(step.batch, x=x),
            preprocessing_s=step.preprocessing_s + seconds,
            augment_s=seconds,
            error=error,
        )


def augmented(
    batch: Batch,
    augmentation: Augmentation,
    pass_index: int,
    poll: Callable[[], None],
    out: NDArray[Any] | None,
) -> tuple[NDArray[Any] | list[NDArray[Any]], Exception | None]:
    """Return the changed samples; if one cannot be changed, those of the batch and the error.

    Args:
        pass_index: of the batch.
        poll: called before each sample.
        out: memory for the changed samples, shape (>= len(batch), *sample shape); None if sizes differ.
    """
    moments = [pass_index] * len(batch) if batch.moments is None else batch.moments.tolist()
    made: list[NDArray[Any]] = []
    for index, (sample_id, moment) in enumerate(zip(batch.ids.tolist(), moments, strict=True)):
        poll()
        try:
            changed = augmentation.apply(batch.x[index], sample_id, moment)
        except USER_ERRORS as error:  # it must reach the peers as a flag, in the step itself
            return batch.x, as_exception(error)
        if out is None:
            made.append(changed)
        else:
            out[index] = changed
    return made if out is None else out[: len(batch)], None
