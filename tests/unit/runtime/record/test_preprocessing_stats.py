"""What the preprocessors report is summed by rank, and each broken sample counts once."""

from __future__ import annotations

from hpcbal.runtime.record.preprocessing_stats import PreprocessingStats
from hpcbal.runtime.wire.protocol import PreprocessorReport


def test_reports_replace_those_of_before_of_the_same_rank():
    stats = PreprocessingStats(0.01)
    stats.add(1, PreprocessorReport(100, 0.01))
    assert stats.samples_per_s is None  # too little work is known
    stats.add(1, PreprocessorReport(300, 1.0))
    stats.add(2, PreprocessorReport(100, 1.0))
    assert (stats.samples_made, stats.busy_s, stats.samples_per_s) == (400, 2.0, 200.0)


def test_there_is_no_rate_while_all_samples_are_broken():
    stats = PreprocessingStats(0.01)
    stats.add(1, PreprocessorReport(0, 1.0, ((7, "7.jpg", "empty"),)))
    assert stats.new_rate() is None
    stats.add(1, PreprocessorReport(100, 2.0))
    assert stats.new_rate() == 50.0


def test_a_sample_that_is_broken_in_every_pass_counts_once():
    stats = PreprocessingStats(0.5)
    bad = (7, "cat/7.jpg", "truncated")
    assert stats.add(1, PreprocessorReport(10, 1.0, (bad, bad))) == [bad]
    assert stats.add(2, PreprocessorReport(10, 1.0, (bad,))) == []
    assert not stats.too_many_bad(2)
    assert stats.too_many_bad(1)


def test_the_error_names_the_first_ones_and_the_limit():
    stats = PreprocessingStats(0.01)
    stats.add(1, PreprocessorReport(10, 1.0, tuple((i, f"{i}.png", "empty") for i in range(5))))
    text = str(stats.error(200))
    assert text.startswith("5 of 200 samples are broken, more than data.max_bad_fraction (0.01) allows; ")
    assert "first: 0.png: empty; 1.png: empty; 2.png: empty. Repair" in text
