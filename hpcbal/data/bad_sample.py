"""A sample that cannot be used: skipped, named and counted, never fatal by itself."""

from __future__ import annotations

from hpcbal.errors import HpcbalError


class BadSample(HpcbalError):  # noqa: N818 - a fact about data, handled, not an error of the run
    """Sample `sample_id`, found at `where` (such as a file name), cannot be used, for `reason`."""

    def __init__(self, sample_id: int, where: str, reason: str) -> None:
        self.sample_id = sample_id
        self.where = where
        self.reason = reason
        super().__init__(sample_id, where, reason)  # args: pickle passes these to __init__

    def __str__(self) -> str:
        return f"sample {self.sample_id} ({self.where}): {self.reason}"


class UnusableSampleError(HpcbalError):
    """Raised by an operation that knows the reason but not the sample; becomes a `BadSample`."""
