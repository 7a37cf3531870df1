"""HDF5 files of a job in training."""

from hpcbal.checkpoint.background import BackgroundWriter, WriteDone
from hpcbal.checkpoint.best import forget_best, holds_best, read_best, recover_best
from hpcbal.checkpoint.reader import read_checkpoint, read_progress, recover_progress
from hpcbal.checkpoint.state import FORMAT_VERSION, TrainingState
from hpcbal.checkpoint.weights import KeptWeights, has_trained, read_weights
from hpcbal.checkpoint.writer import FileIdentity, check_arrays, set_aside, write_checkpoint

__all__ = [
    "FORMAT_VERSION",
    "BackgroundWriter",
    "FileIdentity",
    "KeptWeights",
    "TrainingState",
    "WriteDone",
    "check_arrays",
    "forget_best",
    "has_trained",
    "holds_best",
    "read_best",
    "read_checkpoint",
    "read_progress",
    "read_weights",
    "recover_best",
    "recover_progress",
    "set_aside",
    "write_checkpoint",
]
