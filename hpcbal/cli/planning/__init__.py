"""`hpcbal plan` for each kind of run, and a plan as text."""
