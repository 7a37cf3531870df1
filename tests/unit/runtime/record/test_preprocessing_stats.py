"""The reports of preprocessors are summed by rank, and each broken sample counts once."""

from __future__ import annotations

from hpcbal.runtime.record.accounts import PreprocessingStats
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


def test_the_rate_is_that_of_samples_that_no_cache_holds():
    stats = PreprocessingStats(0.01)
    stats.add(1, PreprocessorReport(100, 1.0))
    assert stats.new_rate() == 100.0
    stats.add(1, PreprocessorReport(1100, 4.0, (), 900))
    stats.add(2, PreprocessorReport(500, 4.0, (), 480))
    assert stats.new_rate() is None  # only what was made before the first hit counts
    stats.add(3, PreprocessorReport(140, 1.0))
    assert stats.new_rate() == 120.0


def test_if_all_ranks_have_hits_these_count_as_no_samples():
    stats = PreprocessingStats(0.01)
    stats.add(1, PreprocessorReport(300, 2.0, (), 300))
    assert stats.new_rate() is None
    stats.add(1, PreprocessorReport(500, 4.0, (), 300))
    assert stats.new_rate() == 50.0


def test_a_sample_that_is_broken_in_every_pass_counts_once():
    stats = PreprocessingStats(0.5)
    bad = (7, "cat/7.jpg", "truncated")
    assert stats.add(1, PreprocessorReport(10, 1.0, (bad, bad))) == [bad]
    assert stats.add(2, PreprocessorReport(10, 1.0, (bad,))) == []
    assert not stats.too_many_bad(2)
    assert stats.too_many_bad(1)


def test_the_error_names_the_faults_and_the_limit():
    stats = PreprocessingStats(0.01)
    bad = [(i, f"{i}.png", f"{i} bytes are missing") for i in range(5)]
    stats.add(1, PreprocessorReport(10, 1.0, (*bad, (5, "cat.png", "empty"))))
    text = str(stats.error(200))
    assert text.startswith("6 of 200 samples are broken, more than data.max_bad_fraction (0.01) allows: ")
    assert "allows: 5 like 0.png: 0 bytes are missing; cat.png: empty. Repair them or raise" in text
    assert text.endswith("then run the same command again")
    assert stats.count_line() is None, "the error says it"


def test_the_end_counts_what_was_left_out():
    stats = PreprocessingStats(0.5)
    assert stats.count_line() is None
    stats.add(1, PreprocessorReport(10, 1.0, ((7, "cat/7.jpg", "truncated"),)))
    assert stats.count_line() == "1 broken sample left out in this start: cat/7.jpg: truncated"


def test_the_cache_is_mentioned_if_samples_were_found_in_it() -> None:
    stats = PreprocessingStats(0.5)
    stats.add(1, PreprocessorReport(100, 1.0))
    assert stats.cache_line() is None
    stats.add(1, PreprocessorReport(150, 1.0, (), 40))
    stats.add(2, PreprocessorReport(50, 1.0, (), 30))
    assert stats.num_from_cache == 70
    assert stats.cache_line() == (
        "ranks made 200 samples in this start: they read 130 from the dataset, and found 70 in the cache"
    )
