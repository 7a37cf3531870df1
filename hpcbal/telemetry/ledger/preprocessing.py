"""Lines about samples and preprocessing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from hpcbal.telemetry.ledger.line import Line, Number


@dataclass(frozen=True, slots=True)
class PreprocessingMeasuredLine(Line):
    """Written when the rate of one preprocessor is known more accurately than before.

    Attributes:
        samples_per_s: rate of one preprocessor, counting only its busy time.
    """

    event: ClassVar[str] = "preprocessing-measured"
    samples_per_s: Number


@dataclass(frozen=True, slots=True)
class BadSampleLine(Line):
    """Written once per start for each sample that cannot be read or preprocessed.

    Attributes:
        sample_id: its index in the dataset.
        where: its file or position; text for users.
        reason: the error.
    """

    event: ClassVar[str] = "bad-sample"
    sample_id: int
    where: str
    reason: str
