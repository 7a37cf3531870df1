"""Values that several rooms share: positions in the data, selections of them, and records of epochs."""

from hpcbal.values.epochs import EpochRecord, Position

__all__ = ["EpochRecord", "Position"]
