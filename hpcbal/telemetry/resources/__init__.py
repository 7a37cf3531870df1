"""Facts about this host: versions, processes, CPU and memory use, control groups."""
