"""Image files and datasets that the tests of `hpcbal.data` share."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image

from hpcbal.data import LabelSpec, SampleSpec


def encode(pixels: NDArray[Any], file_format: str = "PNG") -> bytes:
    """An image file in memory; (height, width) is gray, (height, width, 3) is RGB."""
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, file_format)
    return buffer.getvalue()


class ArrayDataset:
    """The least that a user has to write: rows of an array."""

    def __init__(self, samples: NDArray[Any], labels: list[int] | None = None, num_classes: int = 3) -> None:
        self.samples = samples
        self.labels = labels or [i % num_classes for i in range(len(samples))]
        self.num_classes = num_classes
        self.sample_spec: SampleSpec | None = SampleSpec.of(samples.shape[1:], samples.dtype.name)
        self.label_spec = LabelSpec()

    def __len__(self) -> int:
        return len(self.samples)

    def read(self, sample_id: int) -> tuple[Any, Any]:
        return self.samples[sample_id], self.labels[sample_id]

    def describe(self, sample_id: int) -> str:
        return f"row {sample_id}"


@pytest.fixture
def pixels() -> NDArray[np.uint8]:
    """A smooth RGB image, (20, 30, 3): lossy formats and interpolation change it little."""
    rows, columns = np.mgrid[0:20, 0:30]
    return np.stack([rows * 10, columns * 8, rows * 4 + columns * 4], axis=2).astype(np.uint8)


@pytest.fixture
def png() -> Callable[..., bytes]:
    return encode


@pytest.fixture
def array_dataset() -> type[ArrayDataset]:
    return ArrayDataset


@pytest.fixture
def image_tree(tmp_path: Path, pixels: NDArray[np.uint8]) -> Path:
    """cat/{a.png,b.jpg}, dog/{c.PNG,d.png,e.jpeg}, and files that are left out."""
    root = tmp_path / "images"
    for number, name in enumerate(("dog/c.PNG", "dog/d.png", "dog/e.jpeg", "cat/b.jpg", "cat/a.png")):
        file = root / name
        file.parent.mkdir(parents=True, exist_ok=True)
        is_png = file.suffix.lower() == ".png"
        file.write_bytes(encode(pixels[number:], "PNG" if is_png else "JPEG"))
    (root / "dog" / "notes.txt").write_text("no image")
    (root / "dog" / ".hidden.png").write_bytes(b"no image")
    (root / "dog" / "folder.png").mkdir()
    (root / ".cache").mkdir()
    (root / "README.md").write_text("no class")
    return root
