"""Checks of what a run needs, before it runs: MPI, memory, libraries, devices, files, clocks, speed."""

from hpcbal.doctor.checks import ERROR, WARNING, Finding, merged, text_of

__all__ = ["ERROR", "WARNING", "Finding", "merged", "text_of"]
