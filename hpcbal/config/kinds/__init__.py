"""Kinds of runs: how a file of each becomes a configuration."""
