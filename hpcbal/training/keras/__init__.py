"""Keras models: checked, trained in one traced function, and run, with TensorFlow.

The package imports both, with hpcbal's settings. In a rank Keras does without the libraries that it only
wraps, which are a fifth of the files that it opens, and a third of the time.
"""

import contextlib
import logging
import os
import sys
from collections.abc import Iterator

from hpcbal import env
from hpcbal.processes import is_rank


@contextlib.contextmanager
def _stderr_in_log() -> Iterator[None]:
    """While the block runs, stderr of a rank is its log: TensorFlow prints before it knows its settings."""
    handlers = [each for each in logging.getLogger().handlers if isinstance(each, logging.FileHandler)]
    logs = [each.stream.fileno() for each in handlers if each.stream is not None]
    if not (is_rank() and logs):
        yield
        return
    kept = os.dup(2)
    try:
        os.dup2(logs[0], 2)
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)


os.environ.update(env.tensorflow_settings())  # before the import
_wrapped = [name for name in ("matplotlib", "sklearn") if is_rank() and name not in sys.modules]
sys.modules.update(dict.fromkeys(_wrapped))  # type: ignore[arg-type]  # None: importing it raises ImportError
try:
    with _stderr_in_log():
        import keras  # noqa: F401
finally:
    for _name in _wrapped:
        del sys.modules[_name]
