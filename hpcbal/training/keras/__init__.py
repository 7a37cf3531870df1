"""Keras models: checked, trained in one traced function, and run, with TensorFlow.

The package imports both, with hpcbal's settings. In a rank Keras does without the libraries that it only
wraps, which are a fifth of the files that it opens, and a third of the time.
"""

import os
import sys

from hpcbal import env
from hpcbal.processes import is_rank

os.environ.update(env.tensorflow_settings())  # before the import
_wrapped = [name for name in ("matplotlib", "sklearn") if is_rank() and name not in sys.modules]
sys.modules.update(dict.fromkeys(_wrapped))  # type: ignore[arg-type]  # None: importing it raises ImportError
try:
    import keras  # noqa: F401
finally:
    for _name in _wrapped:
        del sys.modules[_name]
