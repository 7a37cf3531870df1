"""What the allocation holds: nodes, accelerators, ranks, roles."""
