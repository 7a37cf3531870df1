"""Values that several rooms share: positions in the data, selections of them, and records of epochs."""

from hpcbal.values.history import EpochRecord
from hpcbal.values.position import Position

__all__ = ["EpochRecord", "Position"]
