"""A cache changes no sample, whatever its size, and holds what fits; nothing is thrown out."""

from __future__ import annotations

import io
import random as random_numbers
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from PIL import Image

from hpcbal.config.schema.ensemble import DataplaneConfig
from hpcbal.data import BadSample, LabelSpec, PreprocessedSamples, SampleSpec
from hpcbal.data.operations.decode import Decode
from hpcbal.data.operations.geometry import RandomCrop, RandomFlip, Resize
from hpcbal.data.operations.mixing import Mixup
from hpcbal.data.operations.pixel_values import Normalize, RandomContrast
from hpcbal.dataplane.cache import SampleCache
from hpcbal.dataplane.cache_size import CacheNeed
from hpcbal.dataplane.cell import Cell
from hpcbal.dataplane.composer import BlockComposer
from hpcbal.dataplane.shared_memory import SharedMemory
from hpcbal.dataplane.stream import StreamSpec


class Files:
    """Encoded images of different sizes; every seventh is broken."""

    num_classes = 5
    sample_spec = None
    label_spec = LabelSpec()

    def __init__(self, length: int) -> None:
        self.num_reads = 0
        self._files = [self._file(sample_id) for sample_id in range(length)]

    def _file(self, sample_id: int) -> bytes:
        if sample_id % 7 == 3:
            return b"no image"
        rng = np.random.default_rng(sample_id)
        pixels = rng.integers(0, 256, (12 + sample_id % 5, 10 + sample_id % 4, 3), np.uint8)
        buffer = io.BytesIO()
        Image.fromarray(pixels).save(buffer, "PNG")
        return buffer.getvalue()

    def __len__(self) -> int:
        return len(self._files)

    def read(self, sample_id: int) -> tuple[bytes, int]:
        self.num_reads += 1
        return self._files[sample_id], sample_id % 5

    def describe(self, sample_id: int) -> str:
        return f"file {sample_id}"


class Series:
    """Arrays of different lengths, with two targets."""

    num_classes = 1
    sample_spec = SampleSpec.of((None, 3), "float32", 4 * 3 * 9)
    label_spec = LabelSpec((2,), "float32")

    def __init__(self, length: int) -> None:
        self.num_reads = 0
        self._length = length

    def __len__(self) -> int:
        return self._length

    def read(self, sample_id: int) -> tuple[NDArray[Any], NDArray[Any]]:
        self.num_reads += 1
        sample = np.random.default_rng(sample_id).random((1 + sample_id % 9, 3), np.float32)
        return sample, np.array([sample_id, -sample_id])

    def describe(self, sample_id: int) -> str:
        return f"series {sample_id}"


FILES = {
    "large": (Decode(exact=True), RandomCrop(9, 8), Resize(7, 7), RandomFlip(), Normalize()),
    "small": (Decode(), Resize(7, 7), RandomContrast(0.5), Normalize()),
    "fixed": (Decode(), Resize(7, 7), Normalize()),
    "mixed": (Decode(), Resize(7, 7), RandomFlip(), Mixup(0.3), Normalize()),
}


def make(kind: str, length: int) -> PreprocessedSamples:
    dataset: Any = Series(length) if kind == "series" else Files(length)
    operations: Any = FILES.get(kind, ())
    return PreprocessedSamples(dataset, operations, seed=3, validation_fraction=0.25)


def made(source: PreprocessedSamples, sample_id: int, pass_index: int, training: bool) -> Any:
    """The bytes that a producer writes; the reason if the sample is bad."""
    try:
        sample, label = source.sample(sample_id, pass_index, training)
    except BadSample as error:
        return error.reason
    return sample.shape, sample.dtype.name, sample.tobytes(), label.tobytes(), label.dtype.name


kinds = st.sampled_from([*FILES, "series"])


@settings(max_examples=60, deadline=None)
@given(kinds, st.integers(8, 40), st.floats(0.0, 1.2), st.randoms(use_true_random=False))
def test_no_sample_depends_on_the_cache(kind: str, length: int, share: float, random: Any) -> None:
    plain, cached = make(kind, length), make(kind, length)
    need = CacheNeed.of(cached)
    assert need is not None
    num_bytes = max(need.least_bytes, int(share * need.whole_bytes(1)))
    cached.cache = cache = SampleCache(SharedMemory.private(num_bytes), need, num_bytes)
    drawn = [(i, p, random.random() < 0.7) for i in range(length) for p in range(3)]
    random.shuffle(drawn)
    for sample_id, pass_index, training in drawn:
        expected = made(plain, sample_id, pass_index, training)
        assert made(cached, sample_id, pass_index, training) == expected
    dataset: Any = cached.dataset
    num_good = length - (0 if kind == "series" else len(range(3, length, 7)))
    num_kept = sum(map(cache.has, range(length)))
    assert num_kept <= num_good
    reads_of_bad = 3 * (length - num_good)
    probes = length if need.sample.shape[0] is None else 0  # `CacheNeed.of` reads them
    assert dataset.num_reads <= len(drawn) - cache.num_hits + probes
    if share >= 1.0 and need.sample.is_static:
        assert num_kept == num_good
        assert dataset.num_reads == num_good + reads_of_bad
    cache.close()


def blocks(source: PreprocessedSamples, num_passes: int) -> tuple[list[Any], BlockComposer]:
    """All blocks of some passes: which samples are whole, labels and samples."""
    spec = StreamSpec.of_source(source, DataplaneConfig(ring_bytes=2**20, block_samples=5))
    composer, cell = BlockComposer(spec, source), Cell.private(spec.layout)
    found = []
    for block in range(num_passes * spec.blocks_per_pass):
        composer.begin(cell, 1, block, 0)
        while not composer.step():
            pass
        whole = np.flatnonzero(cell.valid)
        read = cell.x.__getitem__ if spec.sample.is_static else cell.sample
        samples = [read(each).tolist() for each in whole.tolist()]
        found.append((cell.header.tolist(), whole.tolist(), cell.y[whole].tolist(), samples))
    return found, composer


@settings(max_examples=60, deadline=None)
@given(kinds, st.integers(8, 60), st.floats(0.0, 1.2))
def test_no_block_depends_on_the_cache(kind: str, length: int, share: float) -> None:
    """Blocks whose samples are all there may be copied at once."""
    plain, cached = make(kind, length), make(kind, length)
    need = CacheNeed.of(cached)
    assert need is not None
    num_bytes = max(need.least_bytes, int(share * need.whole_bytes(1)))
    cached.cache = cache = SampleCache(SharedMemory.private(num_bytes), need, num_bytes)
    dataset: Any = cached.dataset
    dataset.num_reads = 0  # `CacheNeed.of` reads some
    expected, by = blocks(plain, 3)
    found, composer = blocks(cached, 3)
    assert found == expected
    assert (composer.reads, composer.samples_made) == (by.reads, by.samples_made)
    assert cache.num_hits == composer.reads - dataset.num_reads
    cache.close()


@settings(max_examples=40, deadline=None)
@given(st.integers(8, 60), st.floats(0.05, 0.95), st.randoms(use_true_random=False))
def test_every_pass_finds_as_many_samples_whatever_its_order(length: int, share: float, random: Any) -> None:
    source = make("small", length)
    need = CacheNeed.of(source)
    assert need is not None
    num_bytes = max(need.least_bytes, int(share * need.whole_bytes(1)))
    source.cache = cache = SampleCache(SharedMemory.private(num_bytes), need, num_bytes)
    hits = []
    for pass_index in range(4):
        before = cache.num_hits
        ids = list(range(length))
        random.shuffle(ids)
        for sample_id in ids:
            made(source, sample_id, pass_index, True)
        hits.append(cache.num_hits - before)
    assert hits[0] == 0
    num_kept = sum(map(cache.has, range(length)))
    assert hits[1:] == [num_kept] * 3
    num_good = length - len(range(3, length, 7))
    room = round(need.hit_rate(num_bytes) * source.num_positions)
    assert num_kept == min(room, num_good)
    cache.close()


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 300), st.integers(1, 9000), st.integers(1, 6), st.randoms(use_true_random=False))
@example(25, 193, 5, random_numbers.Random(0))
def test_a_whole_cache_has_room_for_all_samples_whoever_makes_them(
    num_samples: int, sample_bytes: int, num_writers: int, random: Any
) -> None:
    need = CacheNeed(
        num_samples, num_samples, SampleSpec.of((sample_bytes,), "uint8"), LabelSpec(), sample_bytes
    )
    num_bytes = need.whole_bytes(num_writers)
    shared = SharedMemory.private(num_bytes)
    writers = [SampleCache(shared, need, num_bytes) for _ in range(num_writers)]
    sample = np.zeros(sample_bytes, np.uint8)
    for sample_id in range(num_samples):
        random.choice(writers).put(sample_id, sample, np.int64(sample_id))
    for sample_id in range(num_samples):
        kept = random.choice(writers).get(sample_id)
        assert kept is not None
        assert kept[1] == sample_id
    assert need.hit_rate(num_bytes) == pytest.approx(1.0)
