"""Layers find their weights in a file or a checkpoint, or a sentence says why not."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from hpcbal.errors import InputError
from hpcbal.training.initial_weights import (
    InitialWeights,
    SourceLayer,
    initial_weights,
    layers_of_checkpoint,
    without_prefix,
)
from hpcbal.training.layers import is_meant, layers_by_name

OWN = {
    "weights/net/stem/kernel": np.zeros((2, 3), np.float32),
    "weights/net/stem/bias": np.zeros(3, np.float32),
    "weights/net/head/kernel": np.zeros((3, 4), np.float32),
    "weights/net/drop/seed_generator_state": np.zeros(2, np.uint32),
}
STEM = (np.full((2, 3), 1.0), np.full(3, 2.0))
HEAD = (np.full((3, 4), 3.0),)


def found(*source: SourceLayer, only: tuple[str, ...] = (), skip: tuple[str, ...] = ()) -> InitialWeights:
    return initial_weights(layers_by_name(OWN), OWN, source, only, skip)


def test_a_layer_is_found_by_its_path_or_by_its_name() -> None:
    weights = found(SourceLayer("net/stem", STEM), SourceLayer("other/head", HEAD))
    assert weights.layers == ("net/stem", "net/head")
    assert {name: array.flat[0] for name, array in weights.arrays.items()} == {
        "weights/net/stem/kernel": 1.0,
        "weights/net/stem/bias": 2.0,
        "weights/net/head/kernel": 3.0,
    }
    assert all(array.dtype == np.float32 for array in weights.arrays.values())


def test_the_path_goes_before_the_name() -> None:
    other = SourceLayer("other/stem", tuple(-array for array in STEM))
    weights = found(other, SourceLayer("net/stem", STEM), skip=("head",))
    assert weights.arrays["weights/net/stem/bias"].tolist() == [2.0, 2.0, 2.0]


def test_a_checkpoint_is_matched_by_the_names_of_its_arrays() -> None:
    saved = {name: array + 5 for name, array in OWN.items()}
    reordered = dict(reversed(saved.items()))
    weights = found(*layers_of_checkpoint(reordered))
    assert len(weights.arrays) == 3  # the state of random layers stays
    for name, array in weights.arrays.items():
        np.testing.assert_array_equal(array, saved[name])


def test_names_of_a_part_of_a_model_lose_their_prefix() -> None:
    saved = {"encoder.stem.weight": np.zeros(2), "head.weight": np.zeros(3)}
    assert list(without_prefix(Path("a.pt"), saved, "encoder.")) == ["stem.weight"]
    assert list(without_prefix(Path("a.pt"), saved, "")) == [*saved]
    with pytest.raises(InputError, match=r"a\.pt: no name begins with 'decoder\.'; names are encoder\.stem"):
        without_prefix(Path("a.pt"), saved, "decoder.")


def test_patterns_choose_layers() -> None:
    source = (SourceLayer("stem", STEM), SourceLayer("head", HEAD))
    assert found(*source, only=("s*",)).layers == ("net/stem",)
    assert found(*source, skip=("s*",)).layers == ("net/head",)
    assert found(*source, only=("net",), skip=("net/head",)).layers == ("net/stem",)


def test_patterns_name_layers_and_the_models_that_they_are_in() -> None:
    assert is_meant("net/block_1/conv", "block_*")
    assert is_meant("net/block_1/conv", "block_1/conv")
    assert is_meant("net/block_1/conv", "conv")
    assert not is_meant("net/block_1/conv_2", "conv")


@pytest.mark.parametrize(
    ("source", "patterns", "message"),
    [
        ((SourceLayer("stem", STEM),), {}, "it has no layer net/head; it has stem; name the layers that fit"),
        ((SourceLayer("stem", HEAD),), {"only": ("stem",)}, "layer net/stem has 2 arrays, there it has 1"),
        (
            (SourceLayer("stem", (np.zeros((2, 5)), np.zeros(5))),),
            {"only": ("stem",)},
            r"layer net/stem: kernel is \(2, 3\), there it is \(2, 5\); layer net/stem: bias is \(3,\)",
        ),
        (
            (SourceLayer("stem", (STEM[0].astype(complex), STEM[1])),),
            {"only": ("stem",)},
            "kernel is float32, there complex128",
        ),
        (
            (SourceLayer("a/stem", STEM), SourceLayer("b/stem", STEM)),
            {"only": ("stem",)},
            "layer net/stem: it may be any of a/stem, b/stem",
        ),
        (
            (SourceLayer("stem", STEM),),
            {"only": ("stm",)},
            r"init.layers: got 'stm' \(did you mean 'stem'\?\)",
        ),
        ((SourceLayer("stem", STEM),), {"skip": ("x", "*")}, "init.skip: got 'x', allowed: a layer of the"),
        ((SourceLayer("stem", STEM),), {"skip": ("*",)}, "init.skip: leaves no layer"),
    ],
)
def test_what_does_not_fit_is_refused(
    source: tuple[SourceLayer, ...], patterns: dict[str, tuple[str, ...]], message: str
) -> None:
    with pytest.raises(InputError, match=message):
        found(*source, **patterns)
