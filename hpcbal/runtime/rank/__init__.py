"""The state of one rank of a running job: its role, its channel, its share of the data."""
