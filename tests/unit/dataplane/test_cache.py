"""How large a cache is, and how it stops growing while others fill the node's memory."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray

from hpcbal.data.spec import LabelSpec, SampleSpec
from hpcbal.dataplane import cache_size, shared_memory
from hpcbal.dataplane.cache import SampleCache
from hpcbal.dataplane.cache_size import CacheNeed, estimated_mean, granted_bytes, size_on_node
from hpcbal.dataplane.shared_memory import Room, SharedMemory, rooms

SPEC = SampleSpec.of((1000,), "uint8")
NEED = CacheNeed(1000, 1000, SPEC, LabelSpec(), 1000.0)
SAMPLE = np.zeros(1000, np.uint8)
LABEL = np.int64(1)


def room(left: int, total: int = 1600) -> Room:
    return Room(left, total, f"{left} bytes are free", "ask for more")


@pytest.mark.parametrize(
    ("left", "ring", "expected"),
    [
        ((), 10, NEED.whole_bytes(1)),
        ((1000,), 0, 500),
        ((1000, 600), 100, 250),
        ((100, 9000), 100, 0),
        ((50,), 100, 0),
    ],
)
def test_auto_takes_half_of_the_least_that_is_left_beside_the_ring(
    left: tuple[int, ...], ring: int, expected: int
) -> None:
    assert granted_bytes(NEED, "auto", 1, [room(each) for each in left], ring) == expected


def test_a_size_beyond_the_node_is_refused_only_if_the_samples_need_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    held, whole = NEED.table_bytes + NEED.num_samples * NEED.entry_bytes, NEED.whole_bytes(2)

    def given(need: CacheNeed, left: int, ring: int) -> tuple[str | None, int]:
        for module in (shared_memory, cache_size):
            monkeypatch.setattr(module, "rooms", lambda: [room(left)])
        return size_on_node(need, 2**40, 2, ring)

    assert given(NEED, whole + 199, 99) == (None, whole)
    assert given(NEED, held + 199, 99) == (None, held)  # 100 of 1600 stay free
    problem, _ = given(NEED, held + 99, 100)
    assert problem is not None
    assert f"not enough memory for the cache of decoded samples of this node, {whole} bytes" in problem
    assert "lower dataplane.cache_bytes, or ask for more" in problem


def test_samples_of_unequal_size_get_all_that_is_asked_for_as_far_as_they_can_need_it() -> None:
    """Their mean is a guess, and memory is only taken when samples come."""
    need = CacheNeed(1000, 1000, SampleSpec.of((None,), "uint8"), LabelSpec(), 1000.0, 200.0, 64)
    whole, enough = need.whole_bytes(2), [room(2**30, 2**30)]
    assert whole > 1.3 * NEED.whole_bytes(2)
    assert granted_bytes(need, 100 * whole, 2, enough, 0) == 100 * whole
    assert granted_bytes(need, "auto", 2, enough, 0) == 4 * whole
    for wanted in (2**40, "auto"):  # the need fits
        granted = granted_bytes(need, wanted, 2, [room(3 * whole, 4 * whole)], 1000)
        assert need.hit_rate(granted) == 1.0
        assert granted < 3 * whole - 1000
    bounded = replace(need, sample=SampleSpec.of((None,), "uint8", 1500))
    for wanted in (2**40, "auto"):
        assert 1000 * 1500 < granted_bytes(bounded, wanted, 2, enough, 0) < 1.2 * 1000 * 1600


def test_the_mean_of_some_samples_follows_the_declared_sizes() -> None:
    rng = np.random.default_rng(5)
    sizes = rng.lognormal(6.0, 1.0, 1000).round()
    ids, some = np.arange(1000), np.arange(0, 1000, 40)
    measured = {each: int(64 * sizes[each]) for each in some.tolist()}
    mean, error = estimated_mean(measured, ids, sizes)
    assert mean == pytest.approx(64 * sizes.mean())
    assert error == pytest.approx(0.0, abs=1e-6)
    guess, error = estimated_mean(measured, ids, None)
    assert guess == np.mean(list(measured.values()))
    assert abs(guess - mean) < 3.0 * error < guess
    assert estimated_mean(measured, ids, rng.random(1000) + 0.01) == (guess, error)  # sizes do not matter
    all_measured = {each: int(64 * sizes[each]) for each in ids.tolist()}
    assert estimated_mean(all_measured, ids, None) == (pytest.approx(mean), 0.0)


def test_a_cache_for_all_that_is_full_before_says_how_much_they_need() -> None:
    need = CacheNeed(400, 400, SampleSpec.of((None,), "uint8", 9_000), LabelSpec(), 1000.0, 10.0, 64)
    num_bytes = need.whole_bytes(2)

    def warnings_of(num_bytes: int, sample: NDArray[np.uint8]) -> tuple[int, list[str]]:
        shared = SharedMemory.private(num_bytes)
        ranks = [SampleCache(shared, need, num_bytes) for _ in range(2)]
        for sample_id in range(400):
            ranks[sample_id % 2].put(sample_id, sample, LABEL)
        found = [cache.take_warning() for _ in range(2) for cache in ranks]
        return sum(map(ranks[0].has, range(400))), list(filter(None, found))

    assert warnings_of(num_bytes, SAMPLE) == (400, [])
    assert warnings_of(num_bytes // 2, SAMPLE)[1] == [], "it was never meant to hold all"
    large = np.zeros(2_000, np.uint8)
    held, (warning,) = warnings_of(num_bytes, large)
    assert 200 < held < 300
    assert " of 400 samples, which are larger than the 64 that its size was estimated from; " in warning
    advised = int(warning.rsplit(" ", 1)[1])
    assert warnings_of(advised, large) == (400, [])
    assert advised < 1.5 * 400 * 2_100


def test_this_node_has_memory() -> None:
    assert rooms()
    assert all(0 < each.left_bytes <= each.total_bytes for each in rooms())


def test_it_stops_growing_before_the_memory_is_gone() -> None:
    num_bytes = NEED.whole_bytes(1)
    total = 16 * num_bytes
    left = [total // 16 + num_bytes // 2]  # a sixteenth stays free, and half a cache fits

    def known() -> list[Room]:
        return [room(left[0], total)]

    shared = SharedMemory.private(num_bytes)
    first, other = (SampleCache(shared, NEED, num_bytes, known) for _ in range(2))  # of two ranks
    for sample_id in range(1000):
        (first, other)[sample_id % 2].put(sample_id, SAMPLE, LABEL)
        left[0] -= 1088 * (first.get(sample_id) is not None)
    held = [first.get(each) is not None for each in range(1000)]
    assert 300 < sum(held) < 700
    assert all(held[: sum(held) - 32]), "each rank has a chunk of its own"
    warnings = [cache.take_warning() for _ in range(2) for cache in (first, other)]
    (warning,) = filter(None, warnings)
    assert warning.startswith("the cache of decoded samples does not grow any more: ")
    assert "bytes are free" in warning


def test_a_size_that_holds_no_sample_is_named_with_one_that_does() -> None:
    text = NEED.too_small(NEED.least_bytes - 1)
    assert text is not None
    assert f"got {NEED.least_bytes - 1}, which holds no sample ({NEED.least_bytes} would hold one)" in text
    assert NEED.too_small(NEED.least_bytes) is NEED.too_small("auto") is None


def test_a_sample_that_is_larger_than_the_cache_leaves_it_to_others() -> None:
    need = CacheNeed(9, 9, SampleSpec.of((None,), "uint8", 100_000), LabelSpec(), 1000.0)
    num_bytes = need.table_bytes + 20_000
    cache = SampleCache(SharedMemory.private(num_bytes), need, num_bytes)
    cache.put(0, np.zeros(90_000, np.uint8), LABEL)
    cache.put(1, np.full(9_000, 7, np.uint8), LABEL)
    assert cache.get(0) is None
    kept = cache.get(1)
    assert kept is not None
    np.testing.assert_array_equal(kept[0], np.full(9_000, 7))
    cache.put(2, np.zeros(12_000, np.uint8), LABEL)  # more than is left
    cache.put(3, np.full(2_000, 3, np.uint8), LABEL)
    assert cache.get(2) is None
    assert cache.get(3) is not None


def test_it_is_full_once_no_sample_of_the_usual_size_fits() -> None:
    """Otherwise each of the others would be made in vain, to be kept."""
    need = CacheNeed(50, 50, SampleSpec.of((9_000,), "uint8"), LabelSpec(), 9_000.0)
    num_bytes = need.whole_bytes(1) // 2
    cache = SampleCache(SharedMemory.private(num_bytes), need, num_bytes)
    for sample_id in range(50):
        cache.put(sample_id, np.zeros(9_000, np.uint8), LABEL)
    assert 0 < sum(map(cache.has, range(50))) < 50
    assert cache.is_full


@pytest.mark.parametrize("sample_bytes", [2_200, 700, 9_000])
def test_a_small_cache_of_many_writers_holds_what_its_hit_rate_says(sample_bytes: int) -> None:
    need = CacheNeed(999, 999, SampleSpec.of((sample_bytes,), "uint8"), LabelSpec(), sample_bytes)
    num_bytes = need.table_bytes + 60_000
    shared = SharedMemory.private(num_bytes)
    ranks = [SampleCache(shared, need, num_bytes) for _ in range(5)]
    for sample_id in range(999):
        ranks[sample_id % 5].put(sample_id, np.zeros(sample_bytes, np.uint8), LABEL)
    assert sum(map(ranks[0].has, range(999))) == round(999 * need.hit_rate(num_bytes)) > 5


def test_what_is_kept_cannot_be_changed() -> None:
    num_bytes = NEED.least_bytes
    cache = SampleCache(SharedMemory.private(num_bytes), NEED, num_bytes)
    given = SAMPLE.copy()
    cache.put(5, given, LABEL)
    given[:] = 1
    cache.put(5, given, LABEL)  # it is there already
    kept = cache.get(5)
    assert kept is not None
    np.testing.assert_array_equal(kept[0], SAMPLE)
    with pytest.raises(ValueError, match="read-only"):
        kept[0][0] = 1
    assert (sum(map(cache.has, range(NEED.num_ids))), cache.num_hits) == (1, 1)


def test_samples_are_copied_together_if_all_are_there() -> None:
    need = CacheNeed(9, 9, SampleSpec.of((2, 3), "int16"), LabelSpec((2,), "float32"), 12.0)
    num_bytes = need.whole_bytes(1)
    cache = SampleCache(SharedMemory.private(num_bytes), need, num_bytes)
    for number in (4, 8, 0):
        cache.put(number, np.full((2, 3), number, np.int16), np.array([number, -number], np.float32))
    samples, labels = np.zeros((3, 2, 3), np.int16), np.zeros((3, 2), np.float32)
    assert cache.claim(2)
    for not_there in (1, 2):
        assert not cache.copy(np.array([8, not_there, 0]), samples, labels)
    assert (cache.num_hits, samples.any()) == (0, False)
    assert cache.copy(np.array([8, 0, 4]), samples, labels)
    np.testing.assert_array_equal(samples, np.array([8, 0, 4])[:, np.newaxis, np.newaxis] * np.ones((2, 3)))
    assert labels.tolist() == [[8, -8], [0, 0], [4, -4]]
    assert cache.num_hits == 3
    cache.close()


def test_samples_of_several_shapes_are_not_copied_together() -> None:
    need = CacheNeed(9, 9, SampleSpec.of((None,), "uint8", 5), LabelSpec(), 4.0)
    num_bytes = need.whole_bytes(1)
    cache = SampleCache(SharedMemory.private(num_bytes), need, num_bytes)
    cache.put(0, np.ones(5, np.uint8), LABEL)
    assert not cache.copy(np.array([0]), np.zeros((1, 5), np.uint8), np.zeros(1, np.int64))
    assert cache.get(0) is not None
