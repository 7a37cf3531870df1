"""What a trainer does with a batch."""
