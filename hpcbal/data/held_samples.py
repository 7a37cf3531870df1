"""The raw samples that one worker holds in its own memory, as a dataset."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hpcbal.data.dataset import Dataset, RawSample
from hpcbal.data.spec import LabelSpec, SampleSpec
from hpcbal.errors import HpcbalError


class HeldSamples:
    """A dataset that holds only some of its samples; samples are added and removed.

    Attributes:
        num_classes, sample_spec, label_spec: those of the dataset that the samples come from.
        num_bytes: bytes of the held samples.
    """

    def __init__(self, like: Dataset) -> None:
        """Start without samples; `like` is not kept."""
        self.num_classes: int = like.num_classes
        assert not isinstance(like.sample_spec, Mapping), "named arrays are refused where parts are held"
        self.sample_spec: SampleSpec | None = like.sample_spec
        self.label_spec: LabelSpec = like.label_spec
        self.num_bytes = 0
        self._length = len(like)
        self._samples: dict[int, tuple[RawSample, NDArray[Any]]] = {}

    def __len__(self) -> int:
        """Samples of the whole dataset, held or not: all ids are below this."""
        return self._length

    def __contains__(self, sample_id: int) -> bool:
        return sample_id in self._samples

    @property
    def ids(self) -> NDArray[np.int64]:
        """Ids of the held samples, ascending."""
        return np.array(sorted(self._samples), np.int64)

    def put(self, sample_id: int, raw: RawSample, label: Any) -> None:
        """Hold a sample; arrays are copied, so that no larger buffer stays in memory with them."""
        self.drop(sample_id)
        kept = raw.copy() if isinstance(raw, np.ndarray) else bytes(raw)
        self._samples[sample_id] = (kept, np.array(label, self.label_spec.dtype))
        self.num_bytes += num_bytes_of(kept)

    def drop(self, sample_id: int) -> None:
        """Stop holding a sample; does nothing if it was not held."""
        held = self._samples.pop(sample_id, None)
        if held is not None:
            self.num_bytes -= num_bytes_of(held[0])

    def read(self, sample_id: int) -> tuple[RawSample, NDArray[Any]]:
        """Return a held sample and its label.

        Raises:
            HpcbalError: if another worker holds it.
        """
        try:
            return self._samples[sample_id]
        except KeyError:
            raise HpcbalError(f"sample {sample_id} was read, but this worker does not hold it") from None

    def describe(self, sample_id: int) -> str:
        """Return the sample's id; files and rows are known only to the dataset that it came from."""
        return f"sample {sample_id}"


def num_bytes_of(raw: RawSample) -> int:
    """Bytes of a sample as the dataset returned it."""
    return raw.nbytes if isinstance(raw, np.ndarray) else len(raw)
