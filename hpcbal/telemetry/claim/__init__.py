"""Claim an output directory for one run."""
