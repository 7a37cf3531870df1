"""Shared by `plan`, `simulate` and a run's own prediction: DNNs with rates, flotillas, memory, wall time."""
