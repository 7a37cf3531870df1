"""How runs of each kind start and go, for the launcher and for the ranks."""
