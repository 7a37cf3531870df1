"""Lines about the samples and those who make them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from hpcbal.telemetry.ledger.line import Line


@dataclass(frozen=True, slots=True)
class PreprocessingMeasuredLine(Line):
    """Written when the rate of one preprocessor is known better than before.

    Attributes:
        samples_per_s: what one preprocessor makes, counting its busy time only.
    """

    event: ClassVar[str] = "preprocessing-measured"
    samples_per_s: float


@dataclass(frozen=True, slots=True)
class BadSampleLine(Line):
    """Written once per start for each sample that cannot be read or preprocessed.

    Attributes:
        sample_id: its number in the dataset.
        where: its file or place; for people.
        reason: the error.
    """

    event: ClassVar[str] = "bad-sample"
    sample_id: int
    where: str
    reason: str
