"""Placements for predictions: each DNN gets its GPUs, and stays where it can."""

from __future__ import annotations

import pytest

from hpcbal.cluster.layout import Cluster
from hpcbal.policies import Flotilla, assign_gpus_roughly


def flotilla(**num_gpus: int) -> Flotilla:
    none = (0.0,) * len(num_gpus)
    return Flotilla(tuple(num_gpus), tuple(num_gpus.values()), none, none, 0.0)


@pytest.mark.parametrize("had", [{}, {"b": (4, 5)}, {"a": (0,), "b": (0, 7)}, {"c": (1, 2, 3, 4)}])
def test_every_dnn_gets_its_number_and_no_gpu_twice(had: dict[str, tuple[int, ...]]) -> None:
    gpus = assign_gpus_roughly(flotilla(a=3, b=2, c=3), Cluster.uniform(2, 4), had).gpus
    assert {name: len(own) for name, own in gpus.items()} == {"a": 3, "b": 2, "c": 3}
    assert sorted(gpu for own in gpus.values() for gpu in own) == list(range(8))


def test_a_dnn_that_needs_no_more_gpus_than_it_had_stays() -> None:
    had = {"a": (5, 6, 7), "b": (0,)}
    gpus = assign_gpus_roughly(flotilla(a=2, b=2), Cluster.uniform(2, 4), had).gpus
    assert set(gpus["a"]) <= {5, 6, 7}
    assert not set(gpus["a"]) & set(gpus["b"])
