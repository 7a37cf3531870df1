"""Partitioned data: load a rank's part, draw batches from it, migrate samples."""
