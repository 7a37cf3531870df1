"""Evidence of a DNN for the loss of a committee: a number for each of a few validation items, as short text.

The numbers travel from trainers to rank 0 after each epoch, and stay in the ledger. So they are few and
small.
"""

from __future__ import annotations

import base64
import functools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hpcbal.ensembling.answers import TINY, Kind, has_soft_labels, items_of, labels_of
from hpcbal.errors import InputError, PolicyError

Evidence = NDArray[np.float64]
"""One number per item: the probability of the right class or answer, or how far a value is off; NaN where a
sample cannot be used."""

_STREAM = 0xC0331
"""Separates the choice of items from other random streams with the same seed."""

OTHERWISE = {"prune.rule": "rule: asha or median", "search.for": "for: best"}
"""Keys that compare committees during a run, and what can be given instead."""

_DTYPES: Mapping[Kind, tuple[str, str]] = {
    "classes": ("p", "<f2"),
    "labels": ("p", "<f2"),
    "values": ("e", "<f4"),
}
"""The letter that says what the numbers are, and their type: minus the logarithm of a probability, whose
relative rounding in 16 bits is 0.0005, or an error of a value, in the unit of the value."""


@dataclass(frozen=True, slots=True)
class WatchedItems:
    """The validation items whose predictions rank 0 sees; the same for all DNNs and epochs.

    Attributes:
        kind: what the DNNs predict.
        sample_ids: the sample of each item, int64, shape (num_items,), ascending.
        places: the item's number among those of its sample, int64, shape (num_items,).
        wanted_by: the key for which they are watched, of `OTHERWISE`.
    """

    kind: Kind
    sample_ids: NDArray[np.int64]
    places: NDArray[np.int64]
    wanted_by: str = "prune.rule"

    @classmethod
    def draw(
        cls,
        kind: Kind,
        validation_ids: NDArray[np.int64],
        per_sample: int,
        most: int,
        seed: int,
        wanted_by: str = "prune.rule",
    ) -> WatchedItems:
        """Draw at most `most` of the items, each as likely as any other.

        Args:
            validation_ids: of the validation samples, ascending.
            per_sample: items of a sample, >= 1; see `items_per_sample`.
        """
        total = len(validation_ids) * per_sample
        generator = np.random.Generator(np.random.Philox(np.random.SeedSequence((seed, _STREAM))))
        numbers = np.sort(generator.choice(total, min(most, total), replace=False)).astype(np.int64)
        sample_ids = np.asarray(validation_ids, np.int64)[numbers // per_sample]
        return cls(kind, sample_ids, numbers % per_sample, wanted_by)

    def __len__(self) -> int:
        return len(self.sample_ids)

    def items_in(self, ids: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the numbers of the items that belong to these samples."""
        return np.flatnonzero(np.isin(self.sample_ids, ids))

    def evidence(
        self,
        items: NDArray[np.int64],
        ids: NDArray[np.int64],
        predictions: NDArray[np.float64],
        y: NDArray[Any],
    ) -> Evidence:
        """Return the numbers of some items, shape (len(items),).

        Args:
            items: numbers of items, from `items_in`.
            ids: of n samples, in any order; all samples of the items are among them.
            predictions: for these samples, shape (n, ...).
            y: their labels, shape (n, *label shape).

        Raises:
            InputError: if the predictions and the labels do not have the same number of items, or labels give
                shares to several classes.
        """
        rows, labels = items_of(predictions, self.kind), labels_of(y, self.kind)
        if len(rows) != len(labels):
            raise InputError(
                f"{self.wanted_by}: committee: its outputs of shape {predictions.shape[1:]} predict "
                f"{len(rows) // len(ids)} items of a sample, but its label has {len(labels) // len(ids)}"
            )
        self.refuse_soft_labels(y)
        order = np.argsort(ids, kind="stable")
        of_sample = order[np.searchsorted(ids, self.sample_ids[items], sorter=order)]
        wanted = of_sample * (len(rows) // len(ids)) + self.places[items]
        if self.kind == "values":
            return rows[wanted, 0] - labels[wanted]
        return rows[wanted, labels[wanted].astype(np.int64)]

    def refuse_soft_labels(self, y: NDArray[Any]) -> None:
        """Raise an InputError if labels give shares to several classes."""
        if has_soft_labels(y, self.kind):
            raise InputError(
                f"{self.wanted_by}: committee: labels of validation samples give shares to several classes, "
                f"allowed: one class each; use {OTHERWISE[self.wanted_by]}"
            )


def encoded(numbers: Evidence, kind: Kind) -> str:
    """Return the numbers as text: 2.7 characters for each, of values 5.3."""
    letter, dtype = _DTYPES[kind]
    if letter == "p":
        numbers = -np.log(np.clip(numbers, TINY, 1.0))
    with np.errstate(over="ignore"):  # an infinite error cannot be used, like NaN
        return letter + base64.b64encode(numbers.astype(dtype).tobytes()).decode("ascii")


@functools.lru_cache(maxsize=4096)
def decoded(text: str) -> tuple[str, Evidence]:
    """Return the letter of `encoded`, and its numbers, read-only; as they were rounded.

    Raises:
        PolicyError: if the text is not of `encoded`.
    """
    dtypes = dict(_DTYPES.values())
    try:
        raw = np.frombuffer(base64.b64decode(text[1:], validate=True), dtypes[text[:1]])
    except (KeyError, ValueError) as error:
        raise PolicyError(f"evidence of a DNN: got {text[:20]!r}, allowed: as hpcbal writes it") from error
    numbers = raw.astype(np.float64)
    numbers[~np.isfinite(numbers)] = np.nan
    if text[0] == "p":
        numbers = np.exp(-numbers)
    numbers.flags.writeable = False
    return text[0], numbers
