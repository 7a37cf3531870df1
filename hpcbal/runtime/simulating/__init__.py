"""A parameter-server job in virtual time: what a file describes, and the tuner of a real run."""
