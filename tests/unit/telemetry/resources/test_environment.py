"""Versions for the ledger."""

import sys
from types import SimpleNamespace

import numpy as np

import hpcbal
from hpcbal.telemetry.resources.processes import environment_versions


def test_versions_of_what_is_installed_are_reported():
    versions = environment_versions()
    assert versions["hpcbal"] == hpcbal.__version__
    assert versions["numpy"] == np.__version__
    assert versions["python"] == sys.version.split()[0]
    assert all(isinstance(text, str) and text for text in versions.values())


def test_the_mpi_library_speaks_only_when_it_is_loaded(monkeypatch):
    monkeypatch.delitem(sys.modules, "mpi4py.MPI", raising=False)
    assert "mpi_library" not in environment_versions()
    library = SimpleNamespace(Get_library_version=lambda: "Open MPI v5.0.11, package: x\n\0")
    monkeypatch.setitem(sys.modules, "mpi4py.MPI", library)
    assert environment_versions()["mpi_library"] == "Open MPI v5.0.11"
