"""Write a checkpoint under a limit of the file size: the write fails in the middle.

Usage: write_with_size_limit.py DIRECTORY LIMIT_BYTES. Prints the error's class and message.
"""

import resource
import sys
from pathlib import Path

import numpy as np

from hpcbal.checkpoint.state import TrainingState
from hpcbal.checkpoint.writer import write_checkpoint
from hpcbal.errors import HpcbalError
from hpcbal.events.history import Position

resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[2]), int(sys.argv[2])))
try:
    write_checkpoint(
        Path(sys.argv[1]),
        TrainingState("big", 2, Position(2), (), {"weights/w": np.ones(1 << 18)}, ""),
    )
except HpcbalError as error:
    print(type(error).__name__, error)
