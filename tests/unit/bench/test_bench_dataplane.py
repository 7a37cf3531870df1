"""Each way of moving blocks is compared with ours that does the same: copying, or reading in place."""

from __future__ import annotations

import bench_dataplane as bench
import pytest


def test_ratios_are_medians_of_the_ratios_within_the_rounds() -> None:
    rates = {way: 100.0 * (number + 1) for number, way in enumerate(bench.WAYS)}
    rates |= {"ring": 1200.0, "tfdata": 600.0}
    rates |= {"in_place": 6000.0, "tfdata_read": 150.0, "bare": 7500.0, "reads": 8000.0}
    rounds = [{f"{way}_blocks_per_s": slow * rate for way, rate in rates.items()} for slow in (1.0, 0.5)]
    rounds.append(dict.fromkeys(rounds[0], 100.0))  # a disturbed round
    figures = bench.summarise(rounds)
    assert figures["in_place_vs_tfdata"] == pytest.approx(40.0)
    assert figures["of_read_limit"] == pytest.approx(0.75)
    assert figures["of_bare_loop"] == pytest.approx(0.8)
    assert figures["of_memcpy"] == pytest.approx(6.0)
    assert figures["vs_tfdata"] == pytest.approx(2.0)
    assert set(bench.WANTED) <= set(figures)
