"""What a run shows to people: progress lines, status, tables, stragglers."""
