"""Streams are keyed by seed, pass and sample, and by nothing that happened before."""

from __future__ import annotations

import numpy as np

from hpcbal.data.pipeline import SampleStreams


def test_a_stream_starts_again_whatever_was_drawn_before() -> None:
    streams = SampleStreams(seed=3)
    first = streams.stream(2, 5).random(4)
    streams.stream(0, 0).integers(0, 3, 5, np.uint32)  # leaves half a word buffered
    streams.stream(2, 5).random(3)  # leaves a block half used
    np.testing.assert_array_equal(streams.stream(2, 5).random(4), first)
    np.testing.assert_array_equal(SampleStreams(seed=3).stream(2, 5).random(4), first)


def test_half_used_words_do_not_leak_into_the_next_stream() -> None:
    streams = SampleStreams(seed=3)
    expected = streams.stream(1, 1).integers(0, 2**32, 3, np.uint32)
    streams.stream(9, 9).integers(0, 2**32, 1, np.uint32)
    np.testing.assert_array_equal(streams.stream(1, 1).integers(0, 2**32, 3, np.uint32), expected)


def test_streams_of_other_keys_differ() -> None:
    keys = [(seed, pass_index, sample) for seed in (0, 1) for pass_index in (0, 1, 2) for sample in range(50)]
    firsts = {SampleStreams(seed).stream(pass_index, sample).random() for seed, pass_index, sample in keys}
    assert len(firsts) == len(keys)


def test_numbers_over_samples_are_even() -> None:
    streams = SampleStreams(seed=0)
    numbers = np.array([streams.stream(0, sample).random() for sample in range(4000)])
    counts, _ = np.histogram(numbers, bins=8, range=(0, 1))
    assert np.abs(counts - 500).max() < 5 * np.sqrt(500)
    assert abs(np.corrcoef(numbers[:-1], numbers[1:])[0, 1]) < 0.08
