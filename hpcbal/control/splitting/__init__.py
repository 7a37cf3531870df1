"""The state machine that splits the steps of a trainer group over its ranks."""
