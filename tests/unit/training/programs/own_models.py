"""Small models for losses of all kinds."""

from __future__ import annotations

from typing import Any

import keras
from keras import layers


def dense(input_shape: tuple[int, ...], num_outputs: int, activation: str | None = None) -> Any:
    body = [layers.Dense(7, activation="tanh"), layers.Dense(num_outputs, activation)]
    return keras.Sequential([keras.Input(input_shape), *body])


def penalised(input_shape: tuple[int, ...], num_outputs: int) -> Any:
    l2 = keras.regularizers.L2(0.25)
    body = [
        layers.Dense(7, activation="tanh", kernel_regularizer=l2),
        layers.Dense(num_outputs, kernel_regularizer=l2),
    ]
    return keras.Sequential([keras.Input(input_shape), *body])


def places(input_shape: tuple[int, ...], num_outputs: int) -> Any:
    body = [layers.Dense(4 * num_outputs), layers.Reshape((2, 2, num_outputs))]
    return keras.Sequential([keras.Input(input_shape), *body])
