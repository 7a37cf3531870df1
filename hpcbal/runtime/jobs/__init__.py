"""A run of one or many parameter-server jobs: its scheduler, its ranks, and what it leaves on disk."""
