"""A parameter-server job: the roles of its ranks, and what it leaves on disk."""
