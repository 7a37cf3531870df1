"""Keras models: checked, trained in one traced function, and run, with TensorFlow."""
