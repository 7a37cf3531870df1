"""Digits from scikit-learn, and Fashion-MNIST from files in its format."""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
import pytest

from hpcbal.data import Dataset, PreprocessedSamples, SampleSpec, digits, fashion_mnist
from hpcbal.data.datasets.small_sets import DEBIAN_PATH
from hpcbal.errors import DataError


def test_digits_are_scikit_learns_on_the_scale_of_bytes() -> None:
    from sklearn.datasets import load_digits

    dataset: Dataset = digits()
    bunch = load_digits()
    assert (len(dataset), dataset.num_classes) == (1797, 10)
    assert dataset.sample_spec == SampleSpec.of((8, 8, 1), "uint8")
    for sample_id in (0, 1000, 1796):
        image, label = dataset.read(sample_id)
        np.testing.assert_allclose(image[:, :, 0], bunch.images[sample_id] * 255 / 16, atol=0.5)
        assert label == bunch.target[sample_id]
    assert dataset.describe(5) == "digits[5]"


def write_idx(path: Path, array: np.ndarray, packed: bool = True) -> None:
    header = bytes((0, 0, 8, array.ndim)) + np.array(array.shape, ">i4").tobytes()
    content = header + array.astype(np.uint8).tobytes()
    if packed:
        path.with_name(path.name + ".gz").write_bytes(gzip.compress(content))
    else:
        path.write_bytes(content)


@pytest.fixture
def idx_folder(tmp_path: Path) -> Path:
    images = np.random.Generator(np.random.PCG64(0)).integers(0, 256, (7, 4, 5), np.uint8)
    write_idx(tmp_path / "train-images-idx3-ubyte", images[:5])
    write_idx(tmp_path / "train-labels-idx1-ubyte", np.arange(5))
    write_idx(tmp_path / "t10k-images-idx3-ubyte", images[5:], packed=False)
    write_idx(tmp_path / "t10k-labels-idx1-ubyte", np.array([1, 3]), packed=False)
    return tmp_path


def test_the_test_files_validate(idx_folder: Path) -> None:
    dataset = fashion_mnist(str(idx_folder))
    assert (len(dataset), dataset.num_classes) == (7, 5)
    assert dataset.sample_spec == SampleSpec.of((4, 5, 1), "uint8")
    source = PreprocessedSamples(dataset, (), seed=0, validation_fraction=0.5)
    assert (source.num_train, source.num_validation) == (5, 2)
    assert source.ids_of_pass(0)[5:].tolist() == [5, 6]
    assert [int(source.sample(i, 0, training=False)[1]) for i in (0, 4, 5, 6)] == [0, 4, 1, 3]


def test_a_missing_package_is_explained(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"is missing; apt-get install dataset-fashion-mnist, or give its"):
        fashion_mnist(str(tmp_path))


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda content: content[:-40], "cannot be read"),
        (
            lambda content: gzip.compress(gzip.decompress(content)[:-1]),
            "the header says 100; the file is dam",
        ),
        (lambda content: gzip.compress(b"PK" + gzip.decompress(content)), "another format, allowed: IDX"),
        (lambda content: gzip.compress(gzip.decompress(content)[:10]), "another format, allowed: IDX"),
    ],
)
def test_damaged_files_are_named(idx_folder: Path, damage: object, message: str) -> None:
    file = idx_folder / "train-images-idx3-ubyte.gz"
    file.write_bytes(damage(file.read_bytes()))  # type: ignore[operator]
    with pytest.raises(DataError, match=f"train-images-idx3-ubyte.gz: .*{message}"):
        fashion_mnist(str(idx_folder))


def test_files_that_do_not_belong_together_are_refused(idx_folder: Path) -> None:
    write_idx(idx_folder / "train-labels-idx1-ubyte", np.arange(4))
    with pytest.raises(DataError, match=r"got 5 images and 4 labels in the train files"):
        fashion_mnist(str(idx_folder))


def test_debians_package_is_read_where_it_is_installed() -> None:
    """On a machine without the package the same call explains how to get it."""
    if not Path(DEBIAN_PATH).is_dir():
        with pytest.raises(DataError, match=r"apt-get install dataset-fashion-mnist"):
            fashion_mnist()
        return
    dataset = fashion_mnist()
    assert (len(dataset), dataset.num_classes) == (70_000, 10)
    assert dataset.validation_ids == range(60_000, 70_000)
