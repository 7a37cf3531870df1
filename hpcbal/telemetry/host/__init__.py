"""What this host has and does: versions, processes, CPU and memory use, control groups."""
