"""Record what happens in a run, and report it to users; on rank 0."""
