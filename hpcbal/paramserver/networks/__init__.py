"""Keras models on parameter servers: the networks of ensembles, trained by stochastic gradient descent."""

from hpcbal.paramserver.networks.keras_network import KerasNetwork

__all__ = ["KerasNetwork"]
