"""Detect what ends a run early: signals, silent ranks, dead ranks, errors of one rank."""
