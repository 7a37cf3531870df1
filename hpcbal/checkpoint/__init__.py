"""HDF5 files of a job in training."""
