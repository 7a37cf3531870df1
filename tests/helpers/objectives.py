"""The same loss and metrics with Keras and with torch, and labels and outputs to try them on."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf
import torch

from hpcbal.config.schema.objective import LossConfig, MetricConfig
from hpcbal.data.spec import LabelSpec
from hpcbal.training.backend import Sums
from hpcbal.training.keras.objective import KerasObjective
from hpcbal.training.objective import Objective, Probe
from hpcbal.training.torch.confusion import array_of
from hpcbal.training.torch.objective import TorchObjective

TOLERANCES = {"float32": 1e-6, "float64": 1e-10}
"""How far the numbers of both may be apart, of 1 and of their size."""

LABELS = {
    "classes": LabelSpec(),
    "shares": LabelSpec((5,), "float32"),
    "tags": LabelSpec((4,), "float32"),
    "number": LabelSpec((), "float32"),
    "numbers": LabelSpec((3,), "float32"),
    "places": LabelSpec((2, 3), "uint8"),
    "image": LabelSpec((4, 3), "float32"),
    "series": LabelSpec((6, 2), "float32"),
}
NUM_CLASSES = {"classes": 5, "shares": 5, "places": 4}
SHAPES = {"classes": (5,), "number": (1,), "places": (2, 3, 4)}
"""Of outputs for a sample; otherwise that of the labels."""


class Pair:
    """Keras' and torch's objective of one DNN.

    Args:
        make_dnn: a DNN of these settings.
        kind: of labels, a key of `LABELS`.
        dtype: of outputs, "float32" or "float64"; the caller sets Keras' floatx.
        loss: its name; None: the default.
        args: of the loss.
        metrics: names with arguments.
        ending: of the model.
        given: other settings of the DNN.
    """

    def __init__(
        self,
        make_dnn: Callable[..., Any],
        kind: str,
        dtype: str,
        loss: str | None = None,
        args: dict[str, Any] | None = None,
        metrics: Sequence[tuple[str, dict[str, Any]]] | None = None,
        ending: str | None = None,
        **given: Any,
    ) -> None:
        made = None if metrics is None else tuple(MetricConfig(name=n, args=a) for n, a in metrics)
        dnn = make_dnn(
            loss=None if loss is None else LossConfig(name=loss, args=args or {}), metrics=made, **given
        )
        self.kind, self.dtype = kind, dtype
        label, num_classes = LABELS[kind], NUM_CLASSES.get(kind, 0)
        self.keras = KerasObjective(dnn, label, num_classes, ending)
        self.torch = TorchObjective(dnn, label, num_classes, ending, getattr(torch, dtype))

    def losses(
        self, y: np.ndarray, outputs: np.ndarray, weights: np.ndarray | None = None
    ) -> tuple[np.ndarray, ...]:
        """Losses of both while training, and gradients of their sum, each sample's counted differently."""
        counted = np.linspace(0.5, 1.5, len(y)).astype(self.dtype)
        theirs = tf.constant(outputs)
        with tf.GradientTape() as tape:
            tape.watch(theirs)
            of_keras = self.keras.losses(y, weights, outputs=theirs, training=True)
            total = tf.reduce_sum(of_keras * counted)
        ours = torch.tensor(outputs, requires_grad=True)
        given = None if weights is None else torch.tensor(weights)
        of_torch = self.torch.losses(torch.tensor(y), given, outputs=ours, training=True)
        gradient = torch.autograd.grad((of_torch * torch.tensor(counted)).sum(), ours)[0]
        return (
            np.array(of_keras),
            array_of(of_torch),
            np.array(tape.gradient(total, theirs)),
            array_of(gradient),
        )

    def results(self, y: np.ndarray, outputs: np.ndarray, *cuts: int) -> tuple[dict[str, float], ...]:
        """Metrics of all samples with Keras, and of parts between cuts with torch; without the loss."""
        probe = Probe(y[:3], outputs[:3])
        found = []
        for objective, tensor, parts in (
            (self.keras, tf.constant, [slice(None)]),
            (
                self.torch,
                torch.tensor,
                [slice(*ends) for ends in zip((0, *cuts), (*cuts, len(y)), strict=True)],
            ),
        ):
            objective.try_on(probe)
            states = sum(states_of(objective, tensor(y[part]), tensor(outputs[part])) for part in parts)
            results = objective.results(Sums(0.0, len(y), states))
            found.append({name: value for name, value in results.items() if name != "loss"})
        return tuple(found)


def states_of(objective: Objective, y: Any, outputs: Any) -> np.ndarray:
    states = objective.states(y, outputs)
    arrays = [array_of(s) if isinstance(s, torch.Tensor) else np.asarray(s, np.float64) for s in states]
    return np.concatenate([array.ravel() for array in arrays])


def labels(kind: str, n: int, seed: int = 0, dtype: str = "float32") -> np.ndarray:
    """Labels of a kind; tags and an image's places are 0 or 1, shares sum to one."""
    spec, rng = LABELS[kind], np.random.default_rng(seed)
    shape = (n, *spec.shape)
    if kind in NUM_CLASSES and kind != "shares":
        return rng.integers(0, NUM_CLASSES[kind], shape).astype(spec.dtype)
    if kind == "shares":
        found = rng.dirichlet(np.ones(5), n).astype(dtype)
        found[::3] = np.eye(5)[rng.integers(0, 5, len(found[::3]))]
        return found
    if kind in ("tags", "image"):
        return rng.integers(0, 2, shape).astype(dtype)
    return rng.normal(1.0, 1.0, shape).astype(dtype)


def outputs(kind: str, n: int, form: str, dtype: str, seed: int = 1) -> np.ndarray:
    """Outputs for labels of a kind.

    Args:
        form: "any" numbers, "positive" ones, "shares" over the last axis, or "probabilities" for each; of the
            last two, some are 0 and 1.
    """
    rng = np.random.default_rng(seed)
    found = rng.normal(0.3, 2.0, (n, *SHAPES.get(kind, LABELS[kind].shape)))
    if form == "positive":
        found = np.abs(found)
    elif form == "shares":
        found = np.exp(found) / np.exp(found).sum(-1, keepdims=True)
        found[1] = np.eye(found.shape[-1])[0]
    elif form == "probabilities":
        found = 1.0 / (1.0 + np.exp(-found))
        found[1], found[2] = 0.0, 1.0
    return found.astype(dtype)


def close(found: Any, expected: Any, dtype: str, scale: float = 1.0) -> None:
    """Assert that numbers are the same, as far as their type has them."""
    limit = TOLERANCES[dtype] * scale
    np.testing.assert_allclose(np.asarray(found), np.asarray(expected), rtol=limit, atol=limit)


__all__ = ["LABELS", "NUM_CLASSES", "Pair", "close", "keras", "labels", "outputs", "states_of"]
