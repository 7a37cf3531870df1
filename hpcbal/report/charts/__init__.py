"""The charts of a report, one module each."""
