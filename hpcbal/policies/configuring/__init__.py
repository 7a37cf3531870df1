"""Which executors of a job on parameter servers work, which serve, and when that changes."""
