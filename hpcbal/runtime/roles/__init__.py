"""The roles of ranks: scheduler, preprocessor, trainer, and a trainer's rounds and profiling."""
