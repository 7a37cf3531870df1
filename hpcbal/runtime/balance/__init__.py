"""Split steps over a group's ranks: observe, decide in the background, apply."""
