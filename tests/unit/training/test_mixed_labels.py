"""Labels that are distributions over classes, as mixed samples have them, in both backends."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from hpcbal.data.spec import LabelSpec, SampleSpec
from hpcbal.errors import InputError
from hpcbal.models.softmax import EmulatedModel
from hpcbal.training.backend import are_shares
from hpcbal.training.emulated_backend import EmulatedBackend


def test_the_emulated_model_takes_classes_and_distributions_alike() -> None:
    rng = np.random.default_rng(0)
    model = EmulatedModel(6, 4)
    parameters = {"softmax/kernel": rng.normal(size=(6, 4)), "softmax/bias": rng.normal(size=4)}
    x, y = rng.normal(size=(9, 6)), rng.integers(0, 4, 9)
    loss, correct, gradients = model.loss_and_gradient(parameters, x, y)
    shares = np.eye(4, dtype=np.float32)[y]
    found = model.loss_and_gradient(parameters, x, shares)
    assert (pytest.approx(loss), correct) == found[:2]
    for name, gradient in gradients.items():
        np.testing.assert_allclose(found[2][name], gradient, atol=1e-12)


def test_the_loss_of_a_distribution_is_the_weighted_mean_of_the_losses_of_its_classes() -> None:
    rng = np.random.default_rng(1)
    model = EmulatedModel(6, 3)
    parameters = {"softmax/kernel": rng.normal(size=(6, 3)), "softmax/bias": rng.normal(size=3)}
    x = rng.normal(size=(1, 6))
    each = [model.loss_and_gradient(parameters, x, np.array([label])) for label in range(3)]
    weights = np.array([[0.2, 0.7, 0.1]])
    loss, correct, gradients = model.loss_and_gradient(parameters, x, weights)
    assert loss == pytest.approx(weights[0] @ [own[0] for own in each])
    assert correct == each[1][1]
    kernel = sum(weight * own[2]["softmax/kernel"] for weight, own in zip(weights[0], each, strict=True))
    np.testing.assert_allclose(gradients["softmax/kernel"], kernel, atol=1e-12)


def test_which_labels_can_be_distributions() -> None:
    assert are_shares(LabelSpec((3,), "float32"), 3)
    assert not are_shares(LabelSpec((4,), "float32"), 3)
    assert not are_shares(LabelSpec((3,), "int64"), 3)
    assert not are_shares(LabelSpec(), 3)


def test_the_emulated_backend_refuses_other_labels(make_dnn: Any) -> None:
    label = LabelSpec((2,), "float32")
    with pytest.raises(InputError, match=r"DNN .*: labels of shape \(2,\) .* or a distribution over classes"):
        EmulatedBackend({}).build(make_dnn(), SampleSpec.of((6,), "float32"), 3, 0, label=label)
