"""Set up a rank's role: one recipe per role, and the table of all recipes."""
