"""The MPI library that this process has loaded: which one it is, and whether it takes memory of GPUs."""

from __future__ import annotations

import ctypes
import re
from pathlib import Path

from mpi4py import MPI

_GPU_KINDS = {"cuda", "rocm", "level_zero"}
"""Kinds of memory of GPUs, as MPI names them in `mpi_memory_alloc_kinds`."""

_QUERIES = ("MPIX_Query_cuda_support", "MPIX_Query_rocm_support", "MPIX_Query_ze_support")
"""Extensions of Open MPI and MPICH, which return 1 or 0."""


def loaded_libraries(maps: Path = Path("/proc/self/maps")) -> list[str]:
    """Paths of the MPI libraries in this process, sorted; more than one if parts of it use different MPIs.

    Args:
        maps: the process's table of mapped files. Without it, or where the library has another name than
            `libmpi.so`, the list is empty.
    """
    try:
        text = maps.read_text(errors="replace")
    except OSError:
        return []
    return sorted(set(re.findall(r"/\S*/libmpi\.so\S*", text)))


def takes_gpu_memory() -> bool:
    """Whether MPI says that its operations may be given memory of GPUs; False if it does not say.

    Source: MPI 4.1 (side document on memory allocation kinds) for the info key; the manuals of Open MPI and
    MPICH for the functions.
    """
    info = MPI.COMM_WORLD.Get_info()
    kinds = (info.Get("mpi_memory_alloc_kinds") or "").split(",")
    info.Free()
    if any(kind.strip().partition(":")[0] in _GPU_KINDS for kind in kinds):
        return True
    return any(_asks(path, name) for path in loaded_libraries() for name in _QUERIES)


def _asks(path: str, name: str) -> bool:
    """Call the function of this name, if the library has it."""
    try:
        query = getattr(ctypes.CDLL(path), name)
    except (AttributeError, OSError):
        return False
    query.restype = ctypes.c_int
    return bool(query())
