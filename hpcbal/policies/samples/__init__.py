"""Deal samples of unequal size to the workers of a group; pure decisions."""
