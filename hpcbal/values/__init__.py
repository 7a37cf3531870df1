"""Values that several rooms share: positions in the data, and epoch records; no behaviour."""

from hpcbal.values.history import EpochRecord
from hpcbal.values.position import Position

__all__ = ["EpochRecord", "Position"]
