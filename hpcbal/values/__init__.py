"""Values that several wings share: positions in the data, and what an epoch brought; no behaviour."""

from hpcbal.values.history import EpochRecord
from hpcbal.values.position import Position

__all__ = ["EpochRecord", "Position"]
