"""Files that a run writes continuously: metrics, logs, timeline."""
