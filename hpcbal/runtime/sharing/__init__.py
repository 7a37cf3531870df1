"""Run many parameter-server jobs on the same machines."""
