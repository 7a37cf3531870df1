"""Samples that cannot fit into the ring are found in the file alone."""

from __future__ import annotations

import pytest

from hpcbal.config.checks.sections import ring_problems
from hpcbal.config.source.yaml_source import parse_yaml


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (
            "dataplane: {ring_bytes: 127}",
            "f:1: dataplane.ring_bytes: got 127, allowed: at least 128, two blocks",
        ),
        ("dataplane: {ring_bytes: 128}", ""),
        ("dataplane: {ring_bytes: 1, block_samples: 0}", ""),
        ("dataplane: {ring_bytes: x}", ""),
        ("dataplane: {ring_bytes: 1KiB}\npreprocessing:\n- resize: {height: 4, width: 2}", ""),
        (
            "dataplane: {ring_bytes: 1KiB}\npreprocessing:\n- resize: {height: 4, width: 2}\n- normalize: {}",
            "",
        ),
        (
            "dataplane: {ring_bytes: 1KiB, on_device: false}\npreprocessing:\n"
            "- resize: {height: 4, width: 2}\n- normalize: {}",
            "f:1: dataplane.ring_bytes: got 1024, allowed: at least 4096, two blocks of 64 samples of",
        ),
        (
            "dataplane: {ring_bytes: 1KiB}\npreprocessing:\n"
            "- resize: {height: 4, width: 2}\n- normalize: {}\n- random_flip: {}",
            "f:1: dataplane.ring_bytes: got 1024, allowed: at least 4096, two blocks of 64 samples of",
        ),
        (
            "preprocessing:\n- resize: {height: 60000, width: 60000}",
            "f:2: preprocessing.0.resize: two blocks of 64 samples of at least 3600000000 bytes do not fit "
            "into dataplane.ring_bytes (268435456)",
        ),
        ("preprocessing:\n- resize: {height: 60000, width: 60000}\n- center_crop: {height: 9, width: 9}", ""),
        ("preprocessing: [resize, {resize: {height: a, width: 1}}, 3]", ""),
        ("preprocessing: 3\ndataplane: 3", ""),
    ],
)
def test_two_blocks_must_fit(text: str, problem: str) -> None:
    found = ring_problems(parse_yaml(text, "f"))
    assert len(found) == bool(problem)
    assert not found or found[0].startswith(problem)
