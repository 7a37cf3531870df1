"""Drive the splitting of steps over a group's ranks: observe, decide in the background, adopt."""
