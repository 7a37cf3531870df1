"""Many parameter-server jobs on the same machines in virtual time, subtask by subtask."""
