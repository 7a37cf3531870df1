"""The part that `plan` and `simulate` share: DNNs with rates, flotillas, memory, wall time."""
