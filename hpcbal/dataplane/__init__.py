"""Shared preprocessing: a ring of blocks in node memory."""
