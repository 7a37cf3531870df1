"""The message to users when parts of the data are read."""

from __future__ import annotations

import pytest

from hpcbal.runtime.partitions.loading import text_of_reading


@pytest.mark.parametrize(
    ("missing", "reported"),
    [
        ([734, 405, 404, 404], "404 to 734 samples are read and kept on each of 4 slots"),
        ([404, 734], "404 to 734 samples are read and kept on each of 2 slots"),
        ([0, 20, 7], "0 to 20 samples are read and kept on each of 3 slots"),
        ([450, 449, 449, 448], "about 450 samples are read and kept on each of 4 slots"),
        ([1797], "about 1797 samples are read and kept on its slot"),
    ],
)
def test_reading_is_reported_for_all_slots(missing: list[int], reported: str) -> None:
    assert text_of_reading(missing) == reported
