"""Many jobs on the same machines: whose subtask runs when, and which jobs share which machines."""
