"""Command line: one module per verb."""

from hpcbal.cli.main import main

__all__ = ["main"]
