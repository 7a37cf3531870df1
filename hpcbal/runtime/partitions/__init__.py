"""Partitioned data: load a rank's part, draw batches from it, and migrate samples."""
