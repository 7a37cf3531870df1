"""Packed samples are unpacked unchanged: encoded images, arrays of one or of many shapes, any labels."""

from __future__ import annotations

import numpy as np
import pytest

from hpcbal.dataplane.sample_transfer import Sample, pack, unpack

LABEL = np.array(3, np.int64)
CASES: dict[str, list[Sample]] = {
    "bytes": [(7, b"abc", LABEL), (9, b"", LABEL), (8, b"x" * 1000, LABEL)],
    "one shape": [(i, np.full((2, 3), i, np.float32), LABEL) for i in range(5)],
    "one": [(2**40, np.arange(3, dtype=">i2"), LABEL)],
    "many shapes": [(i, np.full((i, 2), i, np.uint16), LABEL) for i in range(1, 6)],
    "not contiguous": [(1, np.arange(24).reshape(4, 6)[:, ::2], LABEL)],
    "labels": [(i, b"a", np.array([[i, 0.5]], np.float32)) for i in range(3)],
}


@pytest.mark.parametrize("case", CASES)
def test_samples_survive_packing(case: str) -> None:
    wanted = CASES[case]
    found = list(unpack(pack(wanted)))
    assert [sample_id for sample_id, _, _ in found] == [sample_id for sample_id, _, _ in wanted]
    for (_, raw, label), (_, wanted_raw, wanted_label) in zip(found, wanted, strict=True):
        assert type(raw) is type(wanted_raw)
        np.testing.assert_array_equal(np.asarray(raw), np.asarray(wanted_raw))
        np.testing.assert_array_equal(label, wanted_label)
        assert label.dtype == wanted_label.dtype
        if isinstance(wanted_raw, np.ndarray):
            assert np.asarray(raw).dtype == wanted_raw.dtype
