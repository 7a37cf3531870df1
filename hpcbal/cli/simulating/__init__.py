"""`hpcbal simulate` for each kind of run, and what it prints and writes."""
