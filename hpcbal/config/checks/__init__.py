"""Checks beyond single keys: across sections, imports, packages, the number of slots."""
