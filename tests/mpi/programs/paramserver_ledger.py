"""A ledger of updates under load: large tables, and blocks that move all the time.

Every turn pushes how many samples it has, and every sample pushes one to a row of its own. So every update
has been applied exactly once if, and only if, the sums in the end are those of all samples and epochs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from mpi4py import MPI
from paramserver_moves import Rotation, Setup, train

from hpcbal.paramserver.api.app import App
from hpcbal.paramserver.api.batch import Batch
from hpcbal.paramserver.api.columns import Columns
from hpcbal.paramserver.api.update import Needs, Parameters, Table, Updates
from hpcbal.paramserver.apps.sources import ArraySource

SAMPLES, EPOCHS, SPARSE_ROWS = 600, 3, 400


class Ledger(App):
    """Counts samples in a dense table of 1.5 MB, in one that only some turns push, and in a sparse one."""

    def tables(self) -> Sequence[Table]:
        return [
            Table("all", 1500, 128, "int64"),
            Table("some", 700, 64, "int64"),
            Table("rows", SPARSE_ROWS, 100, "int64", "sparse"),
        ]

    def needs(self, batch: Batch) -> Needs:
        return {"rows": np.unique(batch.samples % SPARSE_ROWS)}

    def initial_state(self, columns: Columns, rng: np.random.Generator) -> Columns:
        return {"seen": np.zeros(len(columns["x"]), np.int64)}

    def compute(self, batch: Batch, parameters: Parameters) -> Updates:
        seen = batch.state["seen"]
        assert isinstance(seen, np.ndarray)
        seen += 1
        rows, counts = np.unique(batch.samples % SPARSE_ROWS, return_counts=True)
        updates = {
            "all": np.full((1500, 128), batch.num_samples),
            "rows": np.repeat(counts[:, None], 100, axis=1),
        }
        if len(rows) % 2:
            updates["some"] = np.full((700, 64), 1)
        return updates

    def objective(self, batch: Batch, parameters: Parameters) -> Mapping[str, float]:
        seen = batch.state["seen"]
        assert isinstance(seen, np.ndarray)
        return {"seen": float(seen.sum())}

    def metrics(self, sums: Mapping[str, float]) -> Mapping[str, float]:
        return sums


def count_updates(world: MPI.Intracomm, staleness: int | None) -> None:
    """Train; rank 0 checks the sums."""
    setup = Setup(
        lambda: Ledger(ArraySource({"x": np.zeros(SAMPLES)}, {})),
        [1, 2],
        [3, 4],
        mini_batch=20,
        epochs=EPOCHS,
        num_executors=4,
        staleness=staleness,
        after=Rotation(3, 4),
        num_data_blocks=15,
        num_parameter_blocks=12,
    )
    saved = train(world, setup, least_moves=10)
    if world.rank == 0:
        tables = saved.tables(setup.job().layout, 1)
        assert (tables["all"] == SAMPLES * EPOCHS).all(), (tables["all"].min(), tables["all"].max())
        assert (tables["some"] == tables["some"][0, 0]).all(), np.unique(tables["some"])
        expected = np.bincount(np.arange(SAMPLES) % SPARSE_ROWS, minlength=SPARSE_ROWS) * EPOCHS
        assert (tables["rows"] == expected[:, None]).all()
