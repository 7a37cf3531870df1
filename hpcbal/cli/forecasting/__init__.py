"""A forecast for users: what it is made from, as text, and as a page."""
