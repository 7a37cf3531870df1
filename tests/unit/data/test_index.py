"""An index is found once and kept, until the data change; a damaged one is found again, with a warning."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from hpcbal.data.datasets.index import Arrays, Names, index_of

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
    (remark,) = Search().index(tmp_path, tmp_path)[1]  # a folder
    assert f"the index {tmp_path} cannot be written (Is a directory)" in remark
    assert kept(tmp_path) == []


def test_names_are_kept_as_the_system_has_them() -> None:
    given = [["a.png", "", "\u4e2d.png"], [], [os.fsdecode(b"latin-\xe9.png")]]
    names = Names.of(given)
    assert [names[number] for number in range(len(names))] == [name for group in given for name in group]
    assert len(Names.of([])) == 0
