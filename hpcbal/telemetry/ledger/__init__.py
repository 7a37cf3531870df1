"""The ledger: what happened in a run, one typed line per event (docs/ledger.md)."""
