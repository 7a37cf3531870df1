"""Runs in virtual time: the state machine and the policies of a real run, with a simulated clock."""
