"""Views of a run for users: progress lines, status, tables, stragglers."""
