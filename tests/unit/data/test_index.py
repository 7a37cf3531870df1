"""An index is found once and kept, until the data change; a damaged one is found again, with a warning."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from hpcbal.data.datasets.index import Arrays, Names, index_of
from hpcbal.errors import DataError

NUMBERS = np.arange(1000)


class Search:
    """Looks for an index, and counts how often it had to."""

    def __init__(self) -> None:
        self.num = 0

    def find(self) -> Arrays:
        self.num += 1
        return {"numbers": NUMBERS, "num": np.array(self.num)}

    def index(
        self, folder: Path, given: Path | None = None, question: object = "q", state: object = 0
    ) -> tuple[Arrays, tuple[str, ...]]:
        found, remarks = index_of("ours", given and str(given), folder, question, state, self.find)
        assert sorted(found) == ["num", "numbers"]
        np.testing.assert_array_equal(found["numbers"], NUMBERS)
        return found, remarks


def kept(folder: Path) -> list[Path]:
    return sorted(folder.iterdir())


def test_it_is_found_once_for_each_question_and_again_when_the_data_change(tmp_path: Path) -> None:
    search = Search()
    for num, question, state in ((1, "q", 0), (1, "q", 0), (2, "other", 0), (2, "q", 0), (3, "q", 1)):
        assert search.index(tmp_path, question=question, state=state)[1] == ()
        assert search.num == num
    assert [file.name[:14] for file in kept(tmp_path)] == [".hpcbal-index-"] * 2
    assert oct(kept(tmp_path)[0].stat().st_mode)[-3:] == "644"


@pytest.mark.parametrize("damage", ["empty", "text", "zip", "array", "half", "bit"])
def test_a_damaged_one_is_found_again_and_one_warning_says_so(tmp_path: Path, damage: str) -> None:
    search = Search()
    search.index(tmp_path)
    (file,) = kept(tmp_path)
    whole = file.read_bytes()
    middle = len(whole) // 2
    damaged = {
        "empty": b"",
        "text": b"no index",
        "zip": b"PK\x03\x04 cut off",
        "array": b"\x93NUMPY\x01\x00",
        "half": whole[:middle],
        "bit": whole[:middle] + bytes([whole[middle] ^ 1]) + whole[middle + 1 :],
    }[damage]
    file.write_bytes(damaged)
    (remark,) = search.index(tmp_path)[1]
    assert remark == f"ours: the index {file} could not be read (it is damaged), so it was made again"
    assert search.index(tmp_path)[1] == ()
    assert search.num == 2
    assert kept(tmp_path) == [file]


def test_a_place_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    missing = tmp_path / "missing" / "index.npz"
    for num in (1, 2):
        search = Search()
        (remark,) = search.index(tmp_path, missing)[1]
        assert (search.num, num) == (1, num)
    assert remark == (
        f"ours: the index {missing} cannot be written (No such file or directory), so each start looks "
        "through all the data again; set data.args.index to a file that can be written"
    )


@pytest.mark.parametrize("kind", ["text", "empty", "npz", "npy", "shard", "folder", "cut off"])
def test_a_file_that_is_no_index_is_left_as_it_is(tmp_path: Path, kind: str) -> None:
    search = Search()
    file = tmp_path / "given"
    if kind == "folder":
        file.mkdir()
    elif kind == "cut off":
        search.index(tmp_path, file)
        file.write_bytes(file.read_bytes()[:-20])
    elif kind == "npz":
        np.savez(tmp_path / "of-the-user.npz", identity=np.arange(3), weights=NUMBERS)
        file = tmp_path / "of-the-user.npz"
    elif kind == "npy":
        np.save(tmp_path / "given.npy", NUMBERS)
        file = tmp_path / "given.npy"
    else:
        file.write_bytes({"text": b"ash\nfir\n", "empty": b"", "shard": b"x" * 2048}[kind])
    before, num = None if kind == "folder" else file.read_bytes(), search.num
    why = {
        "npz": "is no index",
        "folder": r"cannot be read \(Is a directory\)",
    }.get(kind, "is no index, or is damaged")
    with pytest.raises(
        DataError, match=rf"ours: data.args.index names {file}, which {why}, so it was left as it is; name a"
    ):
        search.index(tmp_path, file)
    assert kept(tmp_path) == [file]
    assert before is None or file.read_bytes() == before
    assert search.num == num  # the error comes before a long search


def test_a_given_file_that_is_an_index_is_replaced(tmp_path: Path) -> None:
    search, file = Search(), tmp_path / "given"
    for num, state in ((1, 0), (2, 1), (2, 1)):
        assert search.index(tmp_path, file, state=state)[1] == ()
        assert search.num == num
    whole, bit = file.read_bytes(), NUMBERS[500:502].tobytes()
    assert whole.count(bit) == 1
    file.write_bytes(whole.replace(bit, bytes(len(bit))))
    (remark,) = search.index(tmp_path, file, state=1)[1]
    assert remark == f"ours: the index {file} could not be read (it is damaged), so it was made again"
    assert kept(tmp_path) == [file]


def test_names_are_kept_as_the_system_has_them() -> None:
    given = [["a.png", "", "\u4e2d.png"], [], [os.fsdecode(b"latin-\xe9.png")]]
    names = Names.of(given)
    assert [names[number] for number in range(len(names))] == [name for group in given for name in group]
    assert len(Names.of([])) == 0
