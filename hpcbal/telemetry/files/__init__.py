"""Files that survive a kill: atomic replacement, append-only lines, the layout of a run directory."""
