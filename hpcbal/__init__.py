"""Train many neural networks at once on one HPC allocation."""

__version__ = "0.1.0"
