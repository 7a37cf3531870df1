"""The limit of `bench_sampler.py` is the best of all assignments."""

from __future__ import annotations

import itertools
import random

import pytest
from bench_sampler import least_time


def test_no_assignment_is_faster_than_the_limit() -> None:
    draw = random.Random(5)
    for _ in range(40):
        sizes = [draw.randint(1, 12) for _ in range(draw.randint(1, 7))]
        speeds = draw.choice(
            [(1.0,), (1.0, 1.0), (1.0, 1.0, 1.0), (1.0, 2.0), (1.0, 1.0, 3.0), (1.0, 2.0, 4.0)]
        )
        best = min(
            max(
                len(share) * max(share, default=0) / speed
                for rank, speed in enumerate(speeds)
                for share in [[size for size, of in zip(sizes, ranks, strict=True) if of == rank]]
            )
            for ranks in itertools.product(range(len(speeds)), repeat=len(sizes))
        )
        assert least_time(sizes, speeds) == pytest.approx(best, rel=1e-6)
