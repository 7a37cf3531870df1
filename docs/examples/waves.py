"""Own data and own models: sine, square or sawtooth?"""

import h5py
import keras
import numpy as np
from keras import layers

from hpcbal.data import LabelSpec, SampleSpec

SHAPES = ("sine", "square", "sawtooth")


class Waves:
    """Noisy waves of three shapes. Samples that are files would be opened in `read`."""

    num_classes = len(SHAPES)
    label_spec = LabelSpec()  # one class per sample

    def __init__(self, num_samples=600, length=64, noise=0.3):
        self.num_samples, self.length, self.noise = num_samples, length, noise
        self.sample_spec = SampleSpec.of((length, 1), "float32")
        self.fingerprint = f"waves {num_samples} {length} {noise}"

    def __len__(self):
        return self.num_samples

    def read(self, sample_id):
        rng = np.random.default_rng(sample_id)  # the same sample in every process
        label = sample_id % self.num_classes
        phase = np.linspace(0.0, 4.0 * np.pi, self.length) * rng.uniform(0.8, 1.2) + rng.uniform(0.0, 6.0)
        wave = (np.sin(phase), np.sign(np.sin(phase)), phase / np.pi % 2.0 - 1.0)[label]
        wave = wave + rng.normal(0.0, self.noise, self.length)
        return wave.astype("float32")[:, np.newaxis], label

    def describe(self, sample_id):
        return f"wave {sample_id} ({SHAPES[sample_id % self.num_classes]})"


def shifted(sample, rng, most=8):
    """An operation of `preprocessing`: the wave begins at another moment in each epoch."""
    return sample if rng is None else np.roll(sample, rng.integers(-most, most + 1), axis=0)


def cnn(input_shape, num_classes, width=16, dropout=0.0):
    """A function that returns a model; `width` and `dropout` come from `args`."""
    return keras.Sequential(
        [
            keras.Input(input_shape),
            layers.Conv1D(width, 5, strides=2, activation="relu"),
            layers.Conv1D(2 * width, 5, strides=2, activation="relu"),
            layers.GlobalAveragePooling1D(),
            layers.Dropout(dropout),
            layers.Dense(num_classes),  # logits: no activation
        ]
    )


class Residual(keras.Model):
    """A model as a class."""

    def __init__(self, input_shape, num_classes, width=16):
        super().__init__()
        self.stem = layers.Conv1D(width, 5, strides=2, activation="relu")
        self.norm = layers.BatchNormalization(momentum=0.9)
        self.block = layers.Conv1D(width, 5, padding="same", activation="relu")
        self.pool = layers.GlobalAveragePooling1D()
        self.head = layers.Dense(num_classes)

    def call(self, x, training=False):
        x = self.norm(self.stem(x), training=training)
        return self.head(self.pool(x + self.block(x)))


def load_weights(model, checkpoint):
    """Give a model, made by the same code and called once, the weights of a `checkpoint.h5`."""
    with h5py.File(checkpoint, "r") as file:
        for variable in model.variables:
            variable.assign(file["arrays/weights"][variable.path][()])
