"""Arguments of the datasets that come with hpcbal are checked, because YAML reads no as false."""

from __future__ import annotations

import io
import re
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hpcbal import data
from hpcbal.errors import DataError


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    """A tar archive with one sample."""
    with tarfile.open(tmp_path / "a.tar", "w") as archive:
        for name in ("a.png", "a.cls"):
            info = tarfile.TarInfo(name)
            info.size = 1
            archive.addfile(info, io.BytesIO(b"1"))
    return tmp_path / "a.tar"


@pytest.mark.parametrize("given", [5, None, "", False, ["x"]])
@pytest.mark.parametrize(
    ("name", "key"),
    [
        ("fashion_mnist", "path"),
        ("hdf5", "path"),
        ("image_folder", "path"),
        ("tar_shards", "path"),
        ("tfrecord_shards", "path"),
        ("ts_series", "train"),
    ],
)
def test_a_path_is_a_text(name: str, key: str, given: Any) -> None:
    with pytest.raises(
        DataError, match=re.escape(f"{name}: data.args.{key}: got {given!r}, allowed: a path")
    ):
        getattr(data, name)(**{key: given})


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ({"index": 5}, "index: got 5, allowed: a path"),
        ({"label": False}, "label: got False, allowed: a name; quote it if YAML reads it as something else"),
        ({"num_classes": "5"}, "num_classes: got '5', allowed: a whole number, 1 or more"),
        ({"num_classes": True}, "num_classes: got True, allowed: a whole number"),
        ({"class_names": "abc"}, "class_names: got 'abc', allowed: a list of texts, such as [cat, dog]"),
        ({"class_names": [True, False]}, "class_names: got [True, False], allowed: a list of texts"),
        ({"extensions": ["png", 5]}, "extensions: got ['png', 5], allowed: a list such as [png, jpg]"),
    ],
)
def test_other_arguments_are_what_they_have_to_be(archive: Path, args: dict[str, Any], message: str) -> None:
    with pytest.raises(DataError, match=re.escape(f"tar_shards: data.args.{message}")):
        data.tar_shards(str(archive), **args)
    assert data.tar_shards(archive, num_classes=np.int64(2), class_names=("a", "b")).num_classes == 2
