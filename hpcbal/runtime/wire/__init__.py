"""The control messages that travel between the ranks of a run."""
