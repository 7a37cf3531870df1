"""What a run writes while it goes on: ledger, metrics, logs, timeline."""
