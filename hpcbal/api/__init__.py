"""The same as the command line, from Python: each call is a verb, with its options as arguments."""
