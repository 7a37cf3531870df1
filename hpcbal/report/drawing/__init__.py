"""Drawings as plain shapes, and how they become SVG and PNG."""
