"""Open a run's directory and read what earlier starts left behind."""
