"""Data blocks on disk come back as they went, in whatever order they lie there."""

from __future__ import annotations

from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hpcbal.paramserver.api.batch import DataBlock
from hpcbal.paramserver.api.columns import Ragged
from hpcbal.paramserver.spilling import LocalDisk, SpillError, StoredBlock


def block_of(rng: np.random.Generator, size: int) -> DataBlock:
    offsets = np.concatenate([[0], np.cumsum(rng.integers(0, 4, size))])
    columns = {
        "x": rng.normal(size=(size, 3)),
        "label": rng.integers(0, 9, size).astype(np.int16),
        "rows": Ragged(rng.integers(0, 99, int(offsets[-1])), offsets),
        "values": Ragged(rng.normal(size=int(offsets[-1])), offsets),
    }
    topics = Ragged(rng.integers(0, 5, int(offsets[-1])), offsets)
    state = {"seen": rng.integers(0, 9, size), "topics": topics}
    return DataBlock(3, 100, columns, state)


def values_of(column, sample):
    if isinstance(column, Ragged):
        return column.values[column.offsets[sample] : column.offsets[sample + 1]]
    return column[sample]


def assert_same(found: DataBlock, wanted: DataBlock) -> None:
    for name in ("columns", "state"):
        ours, theirs = getattr(found, name), getattr(wanted, name)
        assert ours.keys() == theirs.keys()
        for key, column in theirs.items():
            for sample in range(len(wanted.columns["x"])):
                np.testing.assert_array_equal(values_of(ours[key], sample), values_of(column, sample))


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(st.integers(0, 2**32 - 1), st.integers(1, 9), st.lists(st.booleans(), max_size=4))
def test_windows_are_read_and_their_state_is_written(tmp_path: Path, seed, size, rearranged) -> None:
    rng = np.random.default_rng(seed)
    wanted = block_of(rng, size)
    with LocalDisk(tmp_path).open() as file:
        stored = StoredBlock(file, wanted)
        assert_same(stored.whole(), wanted)
        for epoch, is_rearranged in enumerate(rearranged):
            order = rng.permutation(size)
            if is_rearranged:
                stored.rearrange(epoch, order)
            start = int(rng.integers(0, size))
            samples = order[start : start + int(rng.integers(1, size - start + 1))]
            window = stored.window(epoch, start, samples)
            np.testing.assert_array_equal(window.block.ids(window.places), 100 + samples)
            for place, sample in zip(window.places, samples, strict=True):
                for key, column in wanted.columns.items():
                    np.testing.assert_array_equal(
                        values_of(window.block.columns[key], place), values_of(column, sample)
                    )
                window.block.state["seen"][place] += 1
                wanted.state["seen"][sample] += 1
            stored.write_state(window)
            assert_same(stored.whole(), wanted)
        only_state = stored.only_state()
        assert not only_state.columns
        np.testing.assert_array_equal(only_state.state["seen"], wanted.state["seen"])
        back = stored.whole()
        back.state["seen"][:] = 77
        stored.store_again(back)
        assert_same(stored.whole(), back)
    assert not list(tmp_path.iterdir())


def test_a_file_has_no_name_even_while_it_is_used(tmp_path: Path) -> None:
    with LocalDisk(tmp_path).open() as file:
        StoredBlock(file, block_of(np.random.default_rng(0), 5))
        assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("code", "reason"), [(28, "it is full"), (122, "it is full"), (5, "Input/output error")]
)
def test_what_cannot_be_written_is_said_in_one_sentence(tmp_path: Path, monkeypatch, code, reason) -> None:
    def fail(fd: int, start: int, size: int) -> None:
        raise OSError(code, "Input/output error")

    monkeypatch.setattr("os.posix_fallocate", fail)
    with LocalDisk(tmp_path).open() as file, pytest.raises(SpillError, match=reason) as caught:
        StoredBlock(file, block_of(np.random.default_rng(0), 5))
    assert str(tmp_path) in str(caught.value)


def test_where_space_cannot_be_reserved_writing_goes_on(tmp_path: Path, monkeypatch) -> None:
    def unsupported(fd: int, start: int, size: int) -> None:
        raise OSError(95, "Operation not supported")

    monkeypatch.setattr("os.posix_fallocate", unsupported)
    wanted = block_of(np.random.default_rng(0), 5)
    with LocalDisk(tmp_path).open() as file:
        assert_same(StoredBlock(file, wanted).whole(), wanted)


def test_what_is_read_from_an_emulated_disk_takes_time_and_what_was_written_before_too(
    tmp_path: Path, monkeypatch
) -> None:
    taken: list[float] = []

    @contextmanager
    def taking(_reader: str, seconds: float):
        yield taken.append(seconds)

    disk = LocalDisk(tmp_path, bytes_per_s=100.0)
    monkeypatch.setattr(disk.emulated, "taking", taking)
    with disk.open() as file, disk.open() as other:
        for each, written, read in ((file, 0, 200), (file, 100, 50), (other, 0, 10), (file, 0, 10)):
            each.pace_writing(written)
            with each.pace_reading(read):
                pass
    assert taken == [2.0, 1.5, 0.1, 0.1]
