"""The pure state machine of a parameter-server job at its master, and its messages."""
