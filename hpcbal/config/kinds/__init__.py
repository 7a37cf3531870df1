"""Kinds of runs: how a file of each kind becomes a configuration."""
