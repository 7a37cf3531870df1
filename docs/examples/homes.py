"""Samples of an image and a table, with a class and a price to predict, for Keras and PyTorch."""

import keras
import numpy as np
import torch
from keras import layers
from torch import nn

from hpcbal.data import LabelSpec, SampleSpec


class Homes:
    """Photos of windows, which show the kind of a home, and facts about it; both make its price."""

    def __init__(self, num_samples=480):
        self.num_samples = num_samples
        self.sample_spec = {
            "photo": SampleSpec.of((8, 8, 1), "uint8"),  # None: an encoded image, as bytes
            "facts": SampleSpec.of((4,), "float32"),
        }
        self.label_spec = {"kind": LabelSpec(), "price": LabelSpec((), "float32")}
        self.num_classes = {"kind": 3, "price": 1}  # classes, or numbers to predict
        self.fingerprint = f"homes {num_samples}"

    def __len__(self):
        return self.num_samples

    def read(self, sample_id):
        rng = np.random.default_rng(sample_id)
        kind = sample_id % 3
        photo = rng.integers(0, 80, (8, 8, 1)).astype("uint8")
        photo[:, 2 * kind : 2 * kind + 2] += 160  # its windows
        facts = rng.normal(size=4).astype("float32")
        price = facts @ [1.0, -0.5, 0.25, 0.0] + kind
        return {"photo": photo, "facts": facts}, {"kind": kind, "price": price}

    def describe(self, sample_id):
        return f"home {sample_id}"


def of_keras(input_shape, num_classes, width=16):
    """`input_shape` and `num_classes` are dicts, too; inputs and outputs have the names of the data."""
    photo = keras.Input(input_shape["photo"], name="photo")
    facts = keras.Input(input_shape["facts"], name="facts")
    seen = layers.Flatten()(layers.Conv2D(width, 3, strides=2, activation="relu")(photo))
    both = layers.Dense(width, activation="relu")(layers.Concatenate()([seen, facts]))
    outputs = {
        "kind": layers.Dense(num_classes["kind"], name="kind")(both),  # logits
        "price": layers.Dense(1, name="price")(layers.Concatenate()([both, facts])),
    }
    return keras.Model({"photo": photo, "facts": facts}, outputs)


class OfTorch(nn.Module):
    def __init__(self, input_shape, num_classes, width=16):
        super().__init__()
        self.seen = nn.Sequential(nn.Conv2d(1, width, 3, stride=2), nn.ReLU(), nn.Flatten())
        self.both = nn.Sequential(nn.Linear(9 * width + 4, width), nn.ReLU())
        self.kind = nn.Linear(width, num_classes["kind"])
        self.price = nn.Linear(width + 4, 1)

    def forward(self, photo, facts):  # by keyword: arguments have the names of the arrays
        both = self.both(torch.cat([self.seen(photo), facts], 1))
        return {"kind": self.kind(both), "price": self.price(torch.cat([both, facts], 1))}


def of_torch(input_shape, num_classes, width=16):
    return OfTorch(input_shape, num_classes, width)
