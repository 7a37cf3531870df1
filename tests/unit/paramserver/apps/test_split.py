"""Every app trains to the same parameters however its data blocks are spread, and wherever they move."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from hpcbal.paramserver import apps
from hpcbal.paramserver.alone import Alone
from hpcbal.paramserver.api.app import App, apply_update, tables_of
from hpcbal.paramserver.api.batch import (
    DataBlocks,
    gather_batch,
    num_steps,
    order_of_block,
    scatter_state,
    step_samples,
    step_slice,
)
from hpcbal.paramserver.api.update import checked_needs, checked_updates

MINI_BATCH, NUM_BLOCKS, NUM_WORKERS, SEED = 40, 7, 3, 5

APPS: dict[str, Callable[[], App]] = {
    "MLR": lambda: apps.MLR(apps.labelled(num_samples=200), l2=1e-3),
    "sparse MLR": lambda: apps.MLR(apps.generated_classes(200, 300, 4, 10), l2=1e-3),
    "NMF": lambda: apps.NMF(apps.generated_ratings(200, 50, 10.0), rank=3, l2=0.01),
    "DenseNMF": lambda: apps.DenseNMF(apps.labelled(num_samples=200), rank=4),
    "LDA": lambda: apps.LDA(apps.generated_documents(200, 100, 20.0, 4), num_topics=4),
    "Lasso": lambda: apps.Lasso(apps.generated_regression(200, 100, 10, 8), l1=0.01),
    "sparse Lasso": lambda: apps.Lasso(apps.generated_regression(200, 100, 10, 8), l1=0.01, access="sparse"),
}


def train_by_workers(app: App, num_epochs: int) -> Alone:
    """Synchronous steps of several workers; data blocks change hands between all steps."""
    trained = Alone(app, mini_batch=MINI_BATCH, num_data_blocks=NUM_BLOCKS, seed=SEED)
    tables, blocks = tables_of(app), DataBlocks(app.source.num_samples, NUM_BLOCKS)
    steps, rng = num_steps(blocks.num_samples, MINI_BATCH), np.random.default_rng(0)
    for epoch in range(num_epochs):
        orders = [order_of_block(SEED, epoch, block, blocks.size(block)) for block in range(NUM_BLOCKS)]
        for step in range(steps):
            owners, pushes = rng.integers(NUM_WORKERS, size=NUM_BLOCKS), []
            for worker in range(NUM_WORKERS):
                slices: Any = []
                for block in np.flatnonzero(owners == worker).tolist():
                    start, stop = step_slice(blocks, block, step, steps)
                    slices.append((trained.data_blocks[block], start, orders[block][start:stop]))
                if not any(len(numbers) for _, _, numbers in slices):
                    continue
                batch = gather_batch(
                    slices[::-1], seed=SEED, epoch=epoch, step_samples=step_samples(blocks, step, steps)
                )
                needs = checked_needs(app.needs(batch), tables)
                pulled = {
                    name: values[needs[name]] if name in needs else values.copy()
                    for name, values in trained.values.items()
                }
                pushes.append(checked_updates(app.compute(batch, pulled), tables, needs))
                scatter_state(batch, slices)
            for number in rng.permutation(len(pushes)).tolist():
                for name, update in pushes[number].items():
                    apply_update(app, name, trained.values[name], update.rows, update.deltas)
    return trained


@pytest.mark.parametrize("name", APPS)
def test_training_by_workers_equals_training_alone(name: str) -> None:
    alone = Alone(APPS[name](), mini_batch=MINI_BATCH, num_data_blocks=NUM_BLOCKS, seed=SEED)
    for _ in range(3):
        alone.train_epoch()
    by_workers = train_by_workers(APPS[name](), 3)
    for table, values in alone.values.items():
        if name == "LDA":
            assert (by_workers.values[table] == values).all()
        assert by_workers.values[table] == pytest.approx(values, rel=1e-8, abs=1e-10)
    by_workers.epoch = alone.epoch
    assert by_workers.evaluate() == pytest.approx(alone.evaluate(), rel=1e-10)
