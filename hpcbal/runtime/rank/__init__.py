"""What one rank of a running job holds: its place, its channel, its share of the data."""
