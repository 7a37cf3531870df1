"""Models with several inputs and outputs, for the tests of Keras and PyTorch members."""

from __future__ import annotations

from typing import Any


def keras_pair(
    shapes: Any, classes: Any, width: int = 8, form: str = "dicts", ending: str | None = None
) -> Any:
    """An image and a table in, a class and a price out.

    Args:
        form: of inputs and outputs: `dicts`, `lists`, `prices first` (lists), `subclass`, or a mistake.
    """
    import keras
    from keras import layers

    if form == "subclass":
        return _subclass(classes, width)
    image = keras.Input(shapes["image"], name="image")
    table = keras.Input(shapes["table"], name="tables" if form == "typo" else "table")
    x = layers.Dense(width, activation="tanh", name="pixels")(layers.Flatten()(image))
    x = layers.Concatenate()([x, layers.Dense(width, activation="tanh", name="columns")(table)])
    x = layers.BatchNormalization(momentum=0.9, name="norm")(x)
    kind = layers.Dense(classes["kind"], name="kind", activation=ending)(x)
    price = layers.Dense(1, name="prize" if form == "other output" else "price")(x)
    if form == "one output":
        return keras.Model([image, table], kind)
    if form == "prices first":
        return keras.Model([image, table], [price, kind])
    if form in ("lists", "typo", "other output"):
        return keras.Model([image, table], [kind, price])
    return keras.Model({"table": table, "image": image}, {"price": price, "kind": kind})


def _subclass(classes: Any, width: int) -> Any:
    import keras
    from keras import layers

    class Pair(keras.Model):
        def __init__(self) -> None:
            super().__init__()
            self.flat = layers.Flatten()
            self.pixels = layers.Dense(width, activation="tanh")
            self.columns = layers.Dense(width, activation="tanh")
            self.norm = layers.BatchNormalization(momentum=0.9)
            self.kind, self.price = layers.Dense(classes["kind"]), layers.Dense(1)

        def call(self, inputs: Any, training: bool = False) -> Any:
            x = self.pixels(self.flat(inputs["image"]))
            x = keras.ops.concatenate([x, self.columns(inputs["table"])], axis=-1)
            x = self.norm(x, training=training)
            return {"price": self.price(x), "kind": self.kind(x)}

    return Pair()


def of_table(shapes: Any, classes: Any) -> Any:
    """A model that takes one of the arrays."""
    import keras
    from keras import layers

    table = keras.Input(shapes["table"], name="table")
    return keras.Model(
        table, [layers.Dense(classes["kind"], name="kind")(table), layers.Dense(1, name="price")(table)]
    )


def torch_pair(shapes: Any, classes: Any, width: int = 8, form: str = "dict") -> Any:
    """The same as `keras_pair`, as a module; `form` is that of its outputs, or a mistake."""
    import collections

    import torch
    from torch import nn

    size = 1
    for length in shapes["image"]:
        size *= length
    Named = collections.namedtuple("Named", ["price", "kind"])

    class Pair(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.pixels, self.columns = nn.Linear(size, width), nn.Linear(shapes["table"][0], width)
            self.norm = nn.BatchNorm1d(2 * width, eps=1e-3)
            self.kind, self.price = nn.Linear(2 * width, classes["kind"]), nn.Linear(2 * width, 1)

        def both(self, image: Any, table: Any) -> Any:
            flat = image.permute(0, 2, 3, 1).flatten(1)  # as Keras flattens
            x = torch.cat([torch.tanh(self.pixels(flat)), torch.tanh(self.columns(table))], 1)
            x = self.norm(x)
            kind, price = self.kind(x), self.price(x)
            if form == "tuple":
                return kind, price
            if form == "three":
                return kind, price, price
            if form == "named":
                return Named(price, kind)
            return {"kind": kind, "prise" if form == "other output" else "price": price}

        def forward(self, table: Any, image: Any) -> Any:
            return self.both(image, table)

    class Typo(Pair):
        def forward(self, imag: Any, table: Any) -> Any:  # type: ignore[override]
            return self.both(imag, table)

    class ByPosition(Pair):
        def forward(self, image: Any, /, table: Any) -> Any:  # type: ignore[override]
            return self.both(image, table)

    class OwnLoss(Pair):
        def loss(self, batch: Any) -> Any:
            found = self(**batch.x)
            errors = (found["price"][:, 0] - batch.y["price"]) ** 2
            return (
                nn.functional.cross_entropy(found["kind"], batch.y["kind"], reduction="none") + 0.5 * errors
            )

    return {"typo": Typo, "by position": ByPosition, "own loss": OwnLoss}.get(form, Pair)()
