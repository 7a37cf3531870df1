"""The parts of an allocation: nodes, accelerators, ranks, roles."""
