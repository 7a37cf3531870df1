"""Runs side by side: their values, as tables and as one page."""
