"""Differences between a model and its checkpoint are named by layer, the optimizer only if layers fit."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from hpcbal.errors import CheckpointError
from hpcbal.training.weights import MAX_SHOWN, check_fit, model_changes

Arrays = dict[str, Any]


def arrays(**shapes: tuple[int, ...]) -> Arrays:
    """Arrays of these shapes; `__` stands for the slash."""
    return {name.replace("__", "/"): np.zeros(shape, np.float32) for name, shape in shapes.items()}


DENSE = {"weights__net__dense__kernel": (8, 4), "weights__net__dense__bias": (4,)}
MOMENTA = {"optimizer__dense_kernel_momentum": (8, 4), "optimizer__dense_bias_momentum": (4,)}
SAVED = arrays(**DENSE, **MOMENTA)


def test_equal_models_do_not_differ() -> None:
    assert model_changes(SAVED, dict(reversed(SAVED.items()))) == []
    check_fit(SAVED, SAVED)


@pytest.mark.parametrize(
    ("own", "changes"),
    [
        (
            arrays(
                weights__net__dense__kernel=(8, 5),
                weights__net__dense__bias=(5,),
                optimizer__dense_kernel_momentum=(8, 5),
            ),
            ["layer net/dense: kernel is (8, 5), was (8, 4), bias is (5,), was (4,)"],
        ),
        (
            arrays(weights__net__dense__kernel=(8, 4), **MOMENTA),
            ["layer net/dense: bias (4,) is gone"],
        ),
        (
            arrays(**DENSE, weights__net__dense_1__kernel=(4, 2), **MOMENTA),
            ["layer net/dense_1 is new (kernel (4, 2))"],
        ),
        (
            arrays(weights__scale=(1,), **MOMENTA),
            ["layer scale is new (scale (1,))", "layer net/dense is gone"],
        ),
        (
            arrays(**DENSE, optimizer__dense_kernel_velocity=(8, 4), optimizer__dense_bias_momentum=(4,)),
            ["the optimizer: dense_kernel_velocity (8, 4) is new; dense_kernel_momentum (8, 4) is gone"],
        ),
        (
            {name: array.astype(np.float64) for name, array in SAVED.items()},
            ["layer net/dense: kernel is float64, was float32, bias is float64, was float32"],
        ),
    ],
)
def test_changes_are_named_by_layer(own: Arrays, changes: list[str]) -> None:
    found = model_changes(SAVED, own)
    assert len(found) == len(changes)
    assert all(text.startswith(change) for text, change in zip(found, changes, strict=True)), found
    with pytest.raises(CheckpointError):
        check_fit(SAVED, own)


def test_of_many_changes_the_first_are_shown() -> None:
    own = SAVED | {f"weights/net/conv_{i}/kernel": np.zeros(2) for i in range(30)}
    with pytest.raises(CheckpointError) as caught:
        check_fit(SAVED, own)
    assert str(caught.value).count("is new") == MAX_SHOWN
    assert str(caught.value).endswith("; and 25 more")
