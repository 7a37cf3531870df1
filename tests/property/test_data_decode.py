"""A damaged image file is decoded or refused: no other exception is raised, and no warning issued."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from PIL import Image

from hpcbal.data.dataset import UnusableSampleError
from hpcbal.data.operations.decode import Decode


def _encode(file_format: str) -> bytes:
    noise = np.random.Generator(np.random.PCG64(0)).integers(0, 256, (24, 24, 3), np.uint8)
    buffer = io.BytesIO()
    Image.fromarray(noise).save(buffer, file_format)
    return buffer.getvalue()


FILES = {file_format: _encode(file_format) for file_format in ("PNG", "JPEG")}


def _decode(content: bytes, mode: str) -> NDArray[Any] | str:
    """The image, or the reason why it cannot be decoded."""
    try:
        return Decode(mode).apply(content)
    except UnusableSampleError as error:
        return str(error)


changes = st.lists(st.tuples(st.floats(0, 1, exclude_max=True), st.integers(0, 255)), max_size=6)


@settings(max_examples=100, deadline=None)
@given(st.sampled_from(sorted(FILES)), changes, st.floats(0, 1), st.sampled_from(["rgb", "gray"]))
def test_damaged_files_are_decoded_or_refused(
    file_format: str, changed: list[tuple[float, int]], kept: float, mode: str
) -> None:
    content = bytearray(FILES[file_format])
    for place, value in changed:
        content[int(place * len(content))] = value
    outcome = _decode(bytes(content[: round(kept * len(content))]), mode)
    if isinstance(outcome, str):
        assert outcome
    else:
        assert outcome.dtype == np.uint8
        assert outcome.shape[2] == (3 if mode == "rgb" else 1)


@settings(max_examples=50, deadline=None)
@given(st.binary(max_size=200))
def test_any_bytes_may_be_passed_as_an_image(content: bytes) -> None:
    assert len(_decode(content, "rgb")) > 0
