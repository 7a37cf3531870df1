"""Read a configuration file into values that know where they were written."""
