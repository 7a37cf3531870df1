"""Trainers get the requested cores; the other ranks get the rest."""

from __future__ import annotations

import pytest
from contention.unequal_workers import cores_of_ranks, start


def test_trainers_are_the_last_ranks() -> None:
    scheduler, preprocessor, *trainers = cores_of_ranks([0, 1, 1], others=[0, 1])
    assert scheduler == preprocessor == {0, 1}
    assert trainers == [{0}, {1}, {1}]


def test_more_preprocessors_come_before_the_trainers() -> None:
    assert cores_of_ranks([3], others=[2], num_preprocessors=2) == ({2}, {2}, {2}, {3})


def test_cores_that_do_not_exist_are_refused() -> None:
    with pytest.raises(SystemExit, match=r"cores \[99999\], allowed: cores of \["):
        start(["run", "a.yaml"], cores=[99999])
