"""Collect the values of a report from the files of a run."""
