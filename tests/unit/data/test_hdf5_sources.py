"""HDF5 reads fill values for values that are missing or were never written, so such datasets are refused."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import h5py
import numpy as np
import pytest

from hpcbal.data import hdf5
from hpcbal.errors import DataError

UNLIMITED = h5py.h5s.UNLIMITED


def source(path: Path, rows: int = 4, name: str = "x", width: int = 2) -> None:
    with h5py.File(path, "a") as file:
        file.create_dataset(name, data=np.ones((rows, width), np.float32), maxshape=(None, width))


def virtual(path: Path, layout: h5py.VirtualLayout, name: str = "images") -> Path:
    with h5py.File(path, "a") as file:
        file.create_virtual_dataset(name, layout, fillvalue=-1)
        if "labels" not in file:
            file["labels"] = np.arange(8) % 2
    return path


def halves(*names: str, rows: int = 4) -> h5py.VirtualLayout:
    layout = h5py.VirtualLayout((4 * len(names), 2), np.float32)
    for number, name in enumerate(names):
        part = h5py.VirtualSource(name, "x", (4, 2))
        layout[4 * number : 4 * number + rows] = part[:rows]
    return layout


def columns(folder: Path, rows: int) -> Path:
    """Two columns that grow, the second one with another number of rows."""
    layout = h5py.VirtualLayout((8, 2), np.float32, maxshape=(None, 2))
    for column, length in enumerate((8, rows)):
        source(folder / f"{column}.h5", length, width=1)
        part = h5py.VirtualSource(f"{column}.h5", "x", (length, 1), maxshape=(None, 1))
        layout[:UNLIMITED, column : column + 1] = part[:UNLIMITED]
    return virtual(folder / "v.h5", layout)


def numbered(folder: Path, rows: int) -> Path:
    """One source for each four rows, by number."""
    source(folder / "0.h5")
    source(folder / "1.h5", rows)
    properties = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    space = h5py.h5s.create_simple((8, 2), (UNLIMITED, 2))
    space.select_hyperslab((0, 0), (UNLIMITED, 1), (4, 1), (4, 2))
    properties.set_virtual(space, b"%b.h5", b"x", h5py.h5s.create_simple((4, 2)))
    with h5py.File(folder / "v.h5", "w") as file:
        shape = h5py.h5s.create_simple((8, 2), (UNLIMITED, 2))
        h5py.h5d.create(file.id, b"images", h5py.h5t.NATIVE_FLOAT, shape, properties)
        file["labels"] = np.arange(8) % 2
    return folder / "v.h5"


def test_whole_sources_are_read(tmp_path: Path) -> None:
    source(tmp_path / "a.h5")
    source(tmp_path / "b.h5")
    virtual(tmp_path / "inner.h5", halves("a.h5"), "x")
    path = virtual(tmp_path / "v.h5", halves("inner.h5", "b.h5"))
    for folder, make in (("columns", columns), ("numbered", numbered)):
        (tmp_path / folder).mkdir()
        assert hdf5(str(make(tmp_path / folder, 8 if make is columns else 4))).read(7)[0].min() == 1.0
    assert [hdf5(str(path)).read(row)[0].tolist() for row in (0, 7)] == [[1.0, 1.0]] * 2


def _gone(folder: Path) -> Path:
    return virtual(folder / "v.h5", halves("a.h5", "gone.h5"))


def _no_hdf5(folder: Path) -> Path:
    (folder / "text.h5").write_text("no HDF5")
    return virtual(folder / "v.h5", halves("a.h5", "text.h5"))


def _without_the_dataset(folder: Path) -> Path:
    source(folder / "b.h5", name="y")
    return virtual(folder / "v.h5", halves("a.h5", "b.h5"))


def _short(folder: Path) -> Path:
    source(folder / "b.h5", rows=3)
    return virtual(folder / "v.h5", halves("a.h5", "b.h5"))


def _partial(folder: Path) -> Path:
    source(folder / "b.h5")
    return virtual(folder / "v.h5", halves("a.h5", "b.h5", rows=3))


def _nested(folder: Path) -> Path:
    virtual(folder / "inner.h5", halves("gone.h5"), "x")
    return virtual(folder / "v.h5", halves("a.h5", "inner.h5"))


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (_gone, r"v\.h5:/images: its values are in gone\.h5, which does not exist"),
        (_no_hdf5, r"in text\.h5, which cannot be opened"),
        (_without_the_dataset, r"b\.h5, which has no dataset 'x'"),
        (_short, r"b\.h5:x, which has shape \(3, 2\) instead of \(4, 2\) or more"),
        (_partial, r"v\.h5:/images: only 12 of its 16 values are mapped to a source"),
        (_nested, r"v\.h5:/images, with values in .*inner\.h5:x: its values are in gone\.h5"),
        (lambda folder: columns(folder, 5), r"1\.h5:x, which has shape \(5, 1\) instead of \(8, 1\) or more"),
        (lambda folder: numbered(folder, 3), r"1\.h5:x, which has shape \(3, 2\) instead of 8 values"),
    ],
)
def test_a_virtual_dataset_that_lacks_values_is_refused(
    tmp_path: Path, make: Callable[[Path], Path], words: str
) -> None:
    source(tmp_path / "a.h5")
    with pytest.raises(DataError, match=words + ".*, so HDF5 would read zeros"):
        hdf5(str(make(tmp_path)))


def test_sources_are_looked_for_where_hdf5_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "elsewhere").mkdir()
    source(tmp_path / "elsewhere" / "a.h5")
    path = virtual(tmp_path / "v.h5", halves("/moved/a.h5", "a.h5"))
    with pytest.raises(DataError, match=r"a\.h5, which does not exist"):
        hdf5(str(path))
    monkeypatch.setenv("HDF5_VDS_PREFIX", f"/nowhere:{tmp_path / 'elsewhere'}")
    assert hdf5(str(path)).read(0)[0].tolist() == [1.0, 1.0]


def test_raw_files_that_are_gone_or_short_are_refused(tmp_path: Path) -> None:
    first, second = tmp_path / "first.bin", tmp_path / "second.bin"
    with h5py.File(tmp_path / "v.h5", "w") as file:
        external = [(str(first), 0, 8), (str(second), 2, UNLIMITED)]
        file.create_dataset("images", (8, 2), np.uint8, external=external)
        file["labels"] = np.arange(8) % 2
    first.write_bytes(bytes(8))
    second.write_bytes(bytes(range(9)))
    with pytest.raises(DataError, match=r"second\.bin, which has 9 bytes instead of at least 10"):
        hdf5(str(tmp_path / "v.h5"))
    second.write_bytes(bytes(range(10)))
    assert hdf5(str(tmp_path / "v.h5")).read(4)[0].tolist() == [2, 3]
    first.unlink()
    with pytest.raises(DataError, match=r"first\.bin, which does not exist"):
        hdf5(str(tmp_path / "v.h5"))


def test_rows_that_nobody_wrote_are_refused(tmp_path: Path) -> None:
    """A program ended too soon, or grew a dataset and did not fill it; zeros that were written are data."""
    for name, rows, options in (
        ("whole", 8, {"chunks": (2, 2), "compression": "gzip"}),
        ("half", 5, {"chunks": (2, 2), "maxshape": (None, 2)}),
        ("never", 0, {}),
    ):
        with h5py.File(tmp_path / f"{name}.h5", "w") as file:
            stored = file.create_dataset("images", (8, 2), np.float32, **options)
            stored[:rows] = np.zeros((rows, 2))
            file["labels"] = np.arange(8) % 2
    assert not hdf5(str(tmp_path / "whole.h5")).read(7)[0].any()
    for name, what in (
        ("half", "images: only 3 of its 4 chunks .of 2 rows. were ever written, so HDF5 would read zeros"),
        ("never", "images: none of its values was ever written"),
    ):
        with pytest.raises(DataError, match=what):
            hdf5(str(tmp_path / f"{name}.h5"))


def test_labels_that_nobody_wrote_are_no_empty_texts(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "text.h5", "w") as file:
        file["images"] = np.ones((8, 2), np.float32)
        file.create_dataset("labels", (8,), h5py.string_dtype())
    with pytest.raises(DataError, match="labels: none of its values was ever written"):
        hdf5(str(tmp_path / "text.h5"))


def test_a_link_that_leads_nowhere_is_named(tmp_path: Path) -> None:
    path = tmp_path / "links.h5"
    with h5py.File(path, "w") as file:
        file["images"] = h5py.ExternalLink("gone.h5", "x")
        file["pixels"] = h5py.SoftLink("/gone/x")
        file["labels"] = np.arange(8) % 2
    with pytest.raises(DataError, match=r"'images' is a link to gone.h5:x, where no dataset can be read"):
        hdf5(str(path))
    with pytest.raises(DataError, match=r"'pixels' is a link to /gone/x, where no dataset can be read"):
        hdf5(str(path), images="pixels")
