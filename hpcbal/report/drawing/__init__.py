"""Drawings as plain shapes, and their conversion to SVG and PNG."""
