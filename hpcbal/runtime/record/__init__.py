"""What rank 0 records about a run, and what it reports to people."""
