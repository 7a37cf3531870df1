"""Notice what ends a run early: signals, the walltime, silent ranks, dead ranks."""
