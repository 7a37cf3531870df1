"""The fingerprints of files cover a bounded part of their content, and not where they are."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import h5py
import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from hpcbal.data import PreprocessedSamples, hdf5
from hpcbal.data.content import are_alike, content_digest, is_repaired, known_as, shortened
from hpcbal.data.dataset import evenly
from hpcbal.data.datasets.image_folder import image_folder
from hpcbal.data.held_out import WithOwnValidation, ids_by_part
from hpcbal.data.operations.decode import Decode


def h5(folder: Path, value: int = 0, **attributes: Any) -> str:
    folder.mkdir()
    with h5py.File(folder / "data.h5", "w") as file:
        file["images"] = np.arange(40, dtype=np.float32).reshape(10, 4) + value
        file.create_dataset("labels", data=np.arange(10) % 2).attrs.update(attributes)
    return str(folder / "data.h5")


def images(folder: Path, content: bytes = b"image") -> str:
    for label in ("cat", "dog"):
        (folder / label).mkdir(parents=True)
        for number in range(3):
            (folder / label / f"{number}.png").write_bytes(content + bytes([number]))
    return str(folder)


def known(source: PreprocessedSamples, trained_on: list[str], broken: list[int]) -> str:
    return known_as(source.fingerprint, trained_on, ids_by_part(source.dataset, broken))


def fingerprint(dataset: Any, *operations: Any) -> str:
    return PreprocessedSamples(dataset, operations, 0, 0.2, max_sample_bytes=1000).fingerprint


def test_hdf5_files_are_known_by_shapes_labels_names_and_values(tmp_path: Path) -> None:
    first = fingerprint(hdf5(h5(tmp_path / "a")))
    assert fingerprint(hdf5(h5(tmp_path / "b"))) == first
    for name, other in (("c", {"value": 1}), ("d", {"class_names": ["x", "y"]})):
        assert fingerprint(hdf5(h5(tmp_path / name, **other))) != first


def test_image_folders_are_known_by_names_sizes_and_content(tmp_path: Path) -> None:
    first = fingerprint(image_folder(images(tmp_path / "a")), Decode())
    assert fingerprint(image_folder(images(tmp_path / "b")), Decode()) == first
    for name, content in (("c", b"other"), ("d", b"longer image")):
        assert fingerprint(image_folder(images(tmp_path / name, content)), Decode()) != first
    (tmp_path / "b" / "cat" / "1.png").unlink()
    (tmp_path / "b" / "cat" / "1.png").symlink_to("nowhere.png")
    assert fingerprint(image_folder(str(tmp_path / "b")), Decode()) != first


def test_the_content_of_validation_data_counts_too(tmp_path: Path) -> None:
    trained, same, other = (
        hdf5(h5(tmp_path / name, value)) for name, value in (("a", 0), ("b", 5), ("c", 6))
    )
    with_same, with_other = (WithOwnValidation(trained, held_out) for held_out in (same, other))
    assert fingerprint(with_same) != fingerprint(with_other)


def test_only_samples_that_were_broken_may_be_repaired(tmp_path: Path) -> None:
    folder = Path(images(tmp_path / "a"))
    broken, other = folder / "cat" / "1.png", folder / "dog" / "0.png"
    broken.write_bytes(b"")

    def opened() -> PreprocessedSamples:
        return PreprocessedSamples(image_folder(str(folder)), [Decode()], 0, 0.2, max_sample_bytes=1000)

    first = opened().fingerprint
    assert known(opened(), [first], []) == first
    broken.write_bytes(b"a whole image")
    now = opened()
    assert now.fingerprint != first
    assert known(now, [first], []) == now.fingerprint, "nobody has said that it was broken"
    assert known(now, [first], [1]) == first
    assert known(now, [first], [0, 2]) == now.fingerprint, "others were"
    assert known(now, ["other.data", first], [1]) == first
    other.write_bytes(b"of another size")
    assert known(opened(), [first], [1]) != first
    other.unlink()
    assert known(opened(), [first], [1, 3]) != first, "there are fewer samples"


def test_rows_of_hdf5_and_validation_samples_may_be_repaired(tmp_path: Path) -> None:
    paths = [h5(tmp_path / name) for name in "ab"]

    def opened() -> PreprocessedSamples:
        return PreprocessedSamples(WithOwnValidation(*map(hdf5, paths)), [], 0, 0.2)

    first = opened().fingerprint
    with h5py.File(paths[1], "r+") as file:
        file["images"][3] = np.nan
    assert known(opened(), [first], [13]) == first
    assert known(opened(), [first], [3]) != first


def test_nobody_can_tell_if_too_many_were_broken() -> None:
    one, other = (content_digest({0: content}, np.arange(5000)) for content in (b"x", b"y"))
    assert one[4:] == other[4:]
    assert is_repaired(one, other, [range(0, 5000, 128)])
    assert not is_repaired(one, other, [range(1000)])
    assert not is_repaired(one, f"{other}+{other}", [[0]])
    assert not is_repaired("of something else", other, [[0]])
    assert is_repaired("0123456789abcdef" * 2, other, [[]]), "an older checkpoint has nothing to compare"
    lengths = np.arange(5000)
    lengths[130] += 1
    assert is_repaired(one, content_digest({0: b"x"}, lengths), [[130]])
    assert shortened(["data.1", f"{'0' * 64}.{one}"])[0] == "data.1"
    assert len(shortened([f"{'0' * 64}.{one}"])[0]) == 97


@given(st.integers(1, 1000), st.integers(1, 100))
def test_numbers_are_spread_evenly(length: int, most: int) -> None:
    found = sorted(evenly(length, most))
    assert len(found) == len(set(found)) == min(length, most)
    assert 0 <= found[0] <= found[-1] < length
    gaps = np.diff(found)
    assert not len(gaps) or gaps.max() - gaps.min() <= 1


def test_data_of_which_few_samples_have_changed_are_alike() -> None:
    def of(names: str, *changed: int) -> str:
        content = {number: b"new" if number in changed else b"old" for number in range(200)}
        return f"{names}.{content_digest(content)}"

    trained_on = of("a")
    assert are_alike(trained_on, of("a", 3, 150))
    assert not are_alike(trained_on, of("b", 3, 150))
    assert not are_alike(trained_on, of("a", *range(0, 200, 10)))
    assert are_alike(f"a.{'0' * 32}", trained_on), "of a version with another digest"
