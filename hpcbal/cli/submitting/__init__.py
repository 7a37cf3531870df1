"""`hpcbal submit`: what a configuration needs of a batch system, and the job that asks for it."""
