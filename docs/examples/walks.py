"""Own samples of unequal length: does a random walk drift down, up, or not at all?"""

import keras
import numpy as np
from keras import layers

from hpcbal.data import LabelSpec, SampleSpec


class Walks:
    """The steps of random walks. Samples that are files would be opened in `read`."""

    num_classes = 3
    label_spec = LabelSpec()  # one class per sample

    def __init__(self, num_samples=600, longest=200):
        self.sizes = np.random.default_rng(0).integers(10, longest + 1, num_samples)  # steps of each walk
        self.sample_spec = SampleSpec.of((None, 1), "float32", max_bytes=4 * longest)  # (steps, 1)
        self.fingerprint = f"walks {num_samples} {longest}"

    def __len__(self):
        return len(self.sizes)

    def read(self, sample_id):
        rng = np.random.default_rng([1, sample_id])  # the same sample in every process
        label = sample_id % self.num_classes
        steps = rng.normal(0.4 * (label - 1), 1.0, self.sizes[sample_id])
        return steps.astype("float32")[:, np.newaxis], label

    def describe(self, sample_id):
        return f"walk {sample_id} of {self.sizes[sample_id]} steps"


def pooled(input_shape, num_classes, width=16):
    """Keras hands the mask from layer to layer; both of these layers respect it."""
    inputs = keras.Input(input_shape)
    features = layers.Dense(width, activation="relu")(inputs)
    return keras.Model(inputs, layers.Dense(num_classes)(layers.GlobalAveragePooling1D()(features)))


class Extremes(keras.Model):
    """A model whose `call` uses the mask itself: the largest feature must not be one of the padding."""

    def __init__(self, input_shape, num_classes, width=16):
        super().__init__()
        self.features = layers.Dense(width, activation="relu")
        self.head = layers.Dense(num_classes)

    def call(self, x, mask=None):
        features = self.features(x)  # (samples, steps, width), never negative
        if mask is not None:
            features = features * keras.ops.cast(mask, features.dtype)[..., None]
        return self.head(keras.ops.max(features, axis=1))
