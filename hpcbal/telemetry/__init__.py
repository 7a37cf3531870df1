"""Ledger, metrics, status, logs."""
