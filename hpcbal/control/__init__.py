"""The ensemble's state machine: messages, states, transitions, instructions; no IO."""
