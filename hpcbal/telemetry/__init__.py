"""The files and messages of a run: ledger, metrics, status, results, logs, progress, output directory."""
