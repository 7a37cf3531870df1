"""HDF5 files: equal arrays, encoded images, ragged arrays; one handle per process."""

from __future__ import annotations

import fcntl
import logging
import multiprocessing
import pickle
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from hpcbal.data import Dataset, PreprocessedSamples, SampleSpec, hdf5
from hpcbal.data.datasets import hdf5 as hdf5_function
from hpcbal.data.operations.decode import Decode
from hpcbal.data.operations.geometry import Resize
from hpcbal.errors import DataError

LABELS = np.array([0, 2, 1, 2], np.uint8)


def write(path: Path, images: Any, labels: Any = LABELS, **options: Any) -> Path:
    with h5py.File(path, "w") as file:
        file.create_dataset("images", data=images, **options)
        file.create_dataset("labels", data=labels)
    return path


def write_ragged(path: Path, rows: list[np.ndarray], shapes: list[tuple[int, ...]] | None = None) -> Path:
    with h5py.File(path, "w") as file:
        stored = file.create_dataset("images", (len(rows),), h5py.vlen_dtype(rows[0].dtype))
        for i, row in enumerate(rows):
            stored[i] = row.ravel()
        file.create_dataset("labels", data=LABELS[: len(rows)])
        if shapes is not None:
            file.create_dataset("shapes", data=shapes)
    return path


@pytest.fixture
def images() -> np.ndarray:
    return np.random.Generator(np.random.PCG64(0)).integers(0, 256, (4, 6, 5, 3), np.uint8)


@pytest.mark.parametrize("options", [{}, {"chunks": (2, 6, 5, 3), "compression": "gzip"}])
def test_equal_arrays_are_read_back(tmp_path: Path, images: np.ndarray, options: dict[str, Any]) -> None:
    path = write(tmp_path / "a.h5", images, **options)
    dataset: Dataset = hdf5(str(path))
    assert len(dataset) == 4
    assert dataset.num_classes == 3
    assert dataset.sample_spec == SampleSpec.of((6, 5, 3), "uint8")
    for i in (3, 0, 2, 1):
        sample, label = dataset.read(i)
        np.testing.assert_array_equal(sample, images[i])
        assert label == LABELS[i]
    assert dataset.describe(2) == f"{path}:images[2]"


def test_gray_images_get_a_channel(tmp_path: Path, images: np.ndarray) -> None:
    dataset = hdf5(str(write(tmp_path / "a.h5", images[:, :, :, 0])))
    assert dataset.sample_spec == SampleSpec.of((6, 5, 1), "uint8")
    np.testing.assert_array_equal(dataset.read(1)[0], images[1, :, :, :1])


def test_names_and_number_of_classes_may_be_given(tmp_path: Path, images: np.ndarray) -> None:
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["train/x"] = images
        file["train/y"] = LABELS[:, np.newaxis]
        file["train/y"].attrs["num_classes"] = 10
    dataset = hdf5(str(tmp_path / "a.h5"), images="train/x", labels="train/y")
    assert dataset.num_classes == 10
    assert dataset.read(3)[1] == 2


def test_bytes_in_another_order_arrive_in_the_machines(tmp_path: Path, images: np.ndarray) -> None:
    path = write(tmp_path / "a.h5", images.astype(">f4"))
    source = PreprocessedSamples(hdf5(str(path)), (), seed=0, validation_fraction=0.25)
    x, _ = source.sample(1, 0, training=True)
    assert x.dtype == np.dtype("=f4")
    np.testing.assert_array_equal(x, images[1])


def test_encoded_images_of_unequal_size_are_decoded(tmp_path: Path, pixels: Any, png: Any) -> None:
    files = [png(pixels), png(pixels[:9]), png(pixels[:, :7])]
    path = write_ragged(tmp_path / "a.h5", [np.frombuffer(file, np.uint8) for file in files])
    dataset = hdf5(str(path))
    assert dataset.sample_spec is None
    source = PreprocessedSamples(dataset, (Decode(),), seed=0, validation_fraction=0.3, max_sample_bytes=2000)
    np.testing.assert_array_equal(source.sample(1, 0, training=True)[0], pixels[:9])
    resized = PreprocessedSamples(dataset, (Decode(), Resize(4, 4)), seed=0, validation_fraction=0.3)
    assert resized.sample(2, 0, training=True)[0].shape == (4, 4, 3)


def test_ragged_arrays_get_their_shapes_and_bound(tmp_path: Path) -> None:
    rows = [np.arange(n * 3, dtype=np.float32).reshape(n, 3) for n in (2, 5, 1)]
    path = write_ragged(tmp_path / "a.h5", rows, [row.shape for row in rows])
    dataset = hdf5(str(path), shapes="shapes")
    assert dataset.sample_spec == SampleSpec.of((None, 3), "float32", 5 * 3 * 4)
    source = PreprocessedSamples(dataset, (), seed=0, validation_fraction=0.3)
    for i, row in enumerate(rows):
        np.testing.assert_array_equal(source.sample(i, 0, training=True)[0], row)


def _label_in_child(dataset: Any, queue: Any) -> None:
    queue.put((dataset.read(1)[0].tobytes(), dataset.read(3)[1]))


def test_each_process_opens_the_file_itself(tmp_path: Path, images: np.ndarray) -> None:
    dataset = hdf5(str(write(tmp_path / "a.h5", images)))
    dataset.read(0)
    copy = pickle.loads(pickle.dumps(dataset))
    np.testing.assert_array_equal(copy.read(2)[0], images[2])
    context = multiprocessing.get_context("fork")
    queue = context.Queue()
    child = context.Process(target=_label_in_child, args=(dataset, queue))
    child.start()
    assert queue.get(timeout=30) == (images[1].tobytes(), 2)
    child.join(30)
    assert child.exitcode == 0
    np.testing.assert_array_equal(dataset.read(3)[0], images[3])
    dataset.close()
    np.testing.assert_array_equal(dataset.read(0)[0], images[0])
    dataset.close()
    copy.close()


def test_a_locked_file_can_be_read(tmp_path: Path, images: np.ndarray) -> None:
    path = write(tmp_path / "a.h5", images)
    with path.open("rb+") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        with pytest.raises(OSError, match="lock"):
            h5py.File(path, "r", locking=True)
        dataset = hdf5(str(path))
        np.testing.assert_array_equal(dataset.read(2)[0], images[2])
        dataset.close()


def test_a_lock_error_names_the_way_out(
    tmp_path: Path, images: np.ndarray, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write(tmp_path / "a.h5", images)

    def refuse(*args: object, **kwargs: object) -> None:
        raise BlockingIOError(524, "unable to lock file, errno = 524")

    monkeypatch.setattr(h5py, "File", refuse)
    with pytest.raises(DataError, match=r"the file system refuses locks: .* HDF5_USE_FILE_LOCKING=FALSE"):
        hdf5(str(path))


def test_other_errors_are_not_blamed_on_locks(tmp_path: Path) -> None:
    (tmp_path / "blocks").mkdir()
    (tmp_path / "blocks" / "lock.h5").write_text("no HDF5")
    with pytest.raises(DataError) as caught:
        hdf5(str(tmp_path / "blocks" / "lock.h5"))
    assert "HDF5_USE_FILE_LOCKING" not in str(caught.value)


def test_missing_and_foreign_files_are_explained(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"is not a file; set data.args.path"):
        hdf5(str(tmp_path / "none.h5"))
    (tmp_path / "text.h5").write_text("no HDF5")
    with pytest.raises(DataError, match=r"text.h5 cannot be opened"):
        hdf5(str(tmp_path / "text.h5"))


def test_the_error_for_a_missing_dataset_lists_the_existing_ones(tmp_path: Path, images: np.ndarray) -> None:
    path = write(tmp_path / "a.h5", images)
    with pytest.raises(DataError, match=r"no dataset 'pictures', there are: images, labels"):
        hdf5(str(path), images="pictures")


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        (LABELS[:3], "allowed: as many rows as labels"),
        (
            LABELS.astype(np.float32) / 8,
            r"labels: row 1 holds 0.25, allowed: whole numbers from 0, which are",
        ),
        (np.array([0.0, 1.0, np.inf, 1.0]), "labels: row 2 holds inf, allowed: whole numbers from 0"),
        (np.array([np.nan, 1.0, -np.inf, 1.0], np.float16), "labels: row 0 holds nan, allowed: whole"),
        (np.array([0, 1, 0, 2**64 - 1], np.uint64), "row 3 holds 18446744073709551615, allowed: whole"),
        (np.zeros((4, 2), np.int64), "allowed: .num_samples,. integers"),
        (np.array([0, -1, 0, 0]), r"got labels -1\.\.0, allowed: 0\.\."),
    ],
)
def test_labels_that_do_not_fit_are_refused(
    tmp_path: Path, images: np.ndarray, labels: np.ndarray, message: str
) -> None:
    with pytest.raises(DataError, match=message):
        hdf5(str(write(tmp_path / "a.h5", images, labels)))


def test_variable_length_numbers_need_shapes(tmp_path: Path) -> None:
    rows = [np.arange(3, dtype=np.float32), np.arange(6, dtype=np.float32)]
    path = write_ragged(tmp_path / "a.h5", rows, [(3, 1, 1), (3, 2, 1)])
    with pytest.raises(DataError, match=r"got variable-length float32, .* data.args.shapes"):
        hdf5(str(path))
    with pytest.raises(DataError, match=r"labels: got shape \(2,\) of uint8, allowed: \(2, num_axes\)"):
        hdf5(str(path), shapes="labels")


def test_shapes_of_equal_arrays_are_refused(tmp_path: Path, images: np.ndarray) -> None:
    path = write(tmp_path / "a.h5", images)
    with pytest.raises(DataError, match=r"holds arrays of one shape: remove data.args.shapes"):
        hdf5(str(path), shapes="labels")


def test_chunks_that_random_reads_unpack_again_and_again_cause_a_warning(
    tmp_path: Path, images: np.ndarray, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    import sys

    module = sys.modules[hdf5_function.__module__]
    path = write(tmp_path / "a.h5", images, chunks=(4, 6, 5, 3))
    with caplog.at_level(logging.WARNING):
        hdf5(str(path))
        assert not caplog.records
        monkeypatch.setattr(module, "CACHE_BYTES", 100)
        hdf5(str(path))
    assert "chunks of 4 samples" in caplog.text
