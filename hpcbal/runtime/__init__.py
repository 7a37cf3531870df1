"""MPI roles that perform the instructions of control."""
