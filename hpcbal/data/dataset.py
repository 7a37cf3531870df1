"""What a dataset is: numbered samples with labels, each readable on its own, in any process."""

from __future__ import annotations

from typing import Any, Protocol

from numpy.typing import NDArray

from hpcbal.data.spec import LabelSpec, SampleSpec
from hpcbal.errors import DataError

RawSample = bytes | NDArray[Any]
"""What `Dataset.read` returns: an encoded image (PNG, JPEG) or an array."""


class Dataset(Protocol):
    """Numbered samples 0..len-1; write one as a plain class and name it in `data.dataset`.

    The constructor may raise any exception: it ends the run with a clear message. An exception from `read`
    marks that one sample as bad. Every rank that preprocesses makes its own object, so open files lazily, in
    `read`.

    Three attributes are optional, and therefore not listed as members: `validation_ids`, a sequence of sample
    ids, if the set comes with its own split (`data.validation_fraction` is then not used); `fingerprint`,
    a string that differs for other data (a run refuses to resume with other data); and `labels`, the classes
    of all samples, shape (len,) of integers (a run then warns of strange ones before it starts).
    """

    def __len__(self) -> int:
        """Number of samples, training and validation together."""
        ...

    @property
    def num_classes(self) -> int:
        """Labels that are classes are in 0..num_classes-1; at least 1."""
        ...

    @property
    def sample_spec(self) -> SampleSpec | None:
        """The arrays that `read` returns; None if it returns encoded images as bytes."""
        ...

    @property
    def label_spec(self) -> LabelSpec:
        """The labels that `read` returns."""
        ...

    def read(self, sample_id: int) -> tuple[RawSample, Any]:
        """Sample `sample_id` and its label (a number, or an array of `label_spec.shape`)."""
        ...

    def describe(self, sample_id: int) -> str:
        """Where the sample comes from, for people: a file name, or file and row."""
        ...


MEMBERS = ("__len__", "num_classes", "sample_spec", "label_spec", "read", "describe")


def check_dataset(dataset: object, name: str) -> None:
    """Check that `dataset` has every member of `Dataset`.

    Args:
        dataset: what the callable in `data.dataset` returned.
        name: its import path, for the message.

    Raises:
        DataError: if members are missing (all are named), or the set is empty.
    """
    missing = [member for member in MEMBERS if not hasattr(dataset, member)]
    if missing:
        raise DataError(
            f"data.dataset {name}: got a {type(dataset).__name__} without {', '.join(missing)}; "
            f"a dataset needs {', '.join(MEMBERS)} (see hpcbal.data.dataset.Dataset)"
        )
    if len(dataset) < 1:  # type: ignore[arg-type]
        raise DataError(f"data.dataset {name}: the dataset has no samples")
