"""Where the values of parameter blocks lie."""

from __future__ import annotations

import numpy as np

from hpcbal.paramserver.api.update import Table
from hpcbal.paramserver.engine.held_block import allocate
from hpcbal.paramserver.engine.wire import Segments
from hpcbal.paramserver.store.layout import Layout


def test_neighbours_of_a_table_are_one_run_and_a_block_that_left_takes_no_pages() -> None:
    layout = Layout([Table("a", 4000, 8), Table("b", 10, 2, "float32")], [4, 2])
    found = {block: (values, release) for block, values, release in allocate(layout, [0, 1, 3, 4, 5])}
    shapes = {block: values.shape for block, (values, _) in found.items()}
    assert shapes == {0: (1000, 8), 1: (1000, 8), 3: (1000, 8), 4: (5, 2), 5: (5, 2)}
    assert len(Segments([found[0][0], found[1][0]]).runs) == 1
    assert len(Segments([found[1][0], found[3][0]]).runs) == 2
    for values, _ in found.values():
        assert (values == 0).all()
        values[:] = 1
    found[0][1]()
    assert (found[0][0] == 0).sum() >= 8000 - 2 * 4096 // 8  # whole pages read as zeros again
    assert all((found[block][0] == 1).all() for block in (1, 3, 4, 5))
    assert found[4][0].dtype == np.float32
