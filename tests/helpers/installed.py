"""Facts about this environment: a set-up may be without Horovod."""

from __future__ import annotations

from importlib.util import find_spec

COLLECTIVES_HERE = ("mpi", "horovod") if find_spec("horovod") is not None else ("mpi",)
"""All that can sum gradients here, by the names in `backend.collective`."""
