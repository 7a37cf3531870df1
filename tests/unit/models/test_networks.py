"""ResNets and DenseNets have the depth, shapes and parameters of their papers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from keras import layers

from hpcbal.models import densenet, resnet
from hpcbal.models.sync_batch_norm import synchronised_layers


def depth_of(model: Any) -> int:
    """Layers with weights on the longest path: convolutions except shortcuts, and the last dense layer."""
    weighted = [x for x in model.layers if isinstance(x, layers.Conv2D | layers.Dense)]
    return sum("shortcut" not in layer.name for layer in weighted)


def num_trainable(model: Any) -> int:
    return sum(int(np.prod(v.shape)) for v in model.trainable_variables)


@pytest.mark.parametrize("depth", [8, 14, 20])
@pytest.mark.parametrize("width", [8, 16])
def test_small_resnet(depth: int, width: int) -> None:
    model = resnet((8, 8, 1), 10, depth=depth, width=width)
    assert depth_of(model) == depth
    assert model.output_shape == (None, 10)
    assert model.get_layer("pool").input.shape == (None, 2, 2, 4 * width)


def test_resnet_20_for_small_images_has_the_parameters_of_the_paper() -> None:
    # 0.27 M in He et al. 2016, Table 6
    assert round(num_trainable(resnet((32, 32, 3), 10, depth=20)) / 1e6, 2) == 0.27


def test_resnet_50_has_the_parameters_of_the_reference() -> None:
    model = resnet((224, 224, 3), 1000, depth=50)
    assert depth_of(model) == 50
    assert num_trainable(model) == 25_557_032
    assert model.get_layer("pool").input.shape == (None, 7, 7, 2048)


@pytest.mark.parametrize(("depth", "growth_rate"), [(10, 6), (16, 8), (22, 12)])
def test_small_densenet(depth: int, growth_rate: int) -> None:
    model = densenet((8, 8, 1), 10, depth=depth, growth_rate=growth_rate, compression=1.0)
    assert depth_of(model) == depth
    channels = growth_rate * (2 + depth - 4)
    assert model.get_layer("pool").input.shape == (None, 2, 2, channels)


def test_compression_drops_channels_between_blocks() -> None:
    model = densenet((9, 9, 1), 10, depth=10, growth_rate=6, compression=0.5)
    assert model.get_layer("transition1_conv").output.shape == (None, 9, 9, 12)
    assert model.get_layer("pool").input.shape == (None, 3, 3, (12 + 12) // 2 + 12)


def test_densenet_121_has_the_parameters_of_the_reference() -> None:
    assert num_trainable(densenet((224, 224, 3), 1000, depth=121, growth_rate=32)) == 7_978_856


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: resnet((8, 8, 1), 10, depth=10), r"got 10, allowed: 6n\+2 \(8, 14, 20"),
        (lambda: resnet((224, 224, 3), 10, depth=20), r"got 20, allowed: \[18, 34, 50, 101, 152\]"),
        (lambda: resnet((8, 8, 1), 10, depth=8, width=0), "got width 0"),
        (lambda: resnet((8, 8, 1), 10, depth=8, stem="tiny"), "stem: got 'tiny', allowed: 'small', 'large'"),
        (lambda: densenet((8, 8, 1), 10, depth=11), r"got 11, allowed: 3n\+4 \(7, 10, 13"),
        (lambda: densenet((8, 8, 1), 10, depth=12, bottleneck=True), r"allowed: 6n\+4 \(10, 16, 22"),
        (lambda: densenet((8, 8, 1), 10, depth=10, compression=1.5), "compression 1.5"),
        (lambda: densenet((8, 8, 1), 10, depth=10, num_blocks=0), "num_blocks: got 0"),
        (lambda: densenet((96, 96, 1), 10, depth=22), r"got 22, allowed: \[121"),
    ],
)
def test_errors_for_impossible_networks_say_what_is_allowed(call: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call()


@pytest.mark.parametrize(("network", "args"), [(resnet, {"depth": 8}), (densenet, {"depth": 10})])
def test_synchronised_batch_norm_has_the_variables_of_the_plain_one(network: Any, args: Any) -> None:
    plain = network((8, 8, 1), 10, **args)
    synchronised = network((8, 8, 1), 10, **args, batch_norm="sync")
    assert not synchronised_layers(plain)
    assert len(synchronised_layers(synchronised)) == sum(
        isinstance(layer, layers.BatchNormalization) for layer in plain.layers
    )
    assert [(v.path, v.shape) for v in synchronised.variables] == [(v.path, v.shape) for v in plain.variables]
    with pytest.raises(ValueError, match="batch_norm: got 'group', allowed: 'local', 'sync'"):
        network((8, 8, 1), 10, **args, batch_norm="group")
