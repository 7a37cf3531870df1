"""HDF5 files of a job in training."""

from hpcbal.checkpoint.background import BackgroundWriter, WriteDone
from hpcbal.checkpoint.layout import check_arrays
from hpcbal.checkpoint.reader import has_trained, read_checkpoint, read_progress, recover_progress
from hpcbal.checkpoint.seal import FORMAT_VERSION
from hpcbal.checkpoint.state import TrainingState
from hpcbal.checkpoint.writer import FileIdentity, write_checkpoint

__all__ = [
    "FORMAT_VERSION",
    "BackgroundWriter",
    "FileIdentity",
    "TrainingState",
    "WriteDone",
    "check_arrays",
    "has_trained",
    "read_checkpoint",
    "read_progress",
    "recover_progress",
    "write_checkpoint",
]
