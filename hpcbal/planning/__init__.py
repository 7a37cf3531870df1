"""What `plan`, `simulate` and a run's own prediction share: DNNs with rates, flotillas, memory, wall time."""
