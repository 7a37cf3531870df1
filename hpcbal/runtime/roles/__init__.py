"""What each rank does: scheduler, preprocessor, trainer, and a trainer's rounds and profiling."""
