"""The example of docs/your-own-model-and-data.md trains, and its weights can be used afterwards."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import keras
import numpy as np
import pytest

from hpcbal.checkpoint import read_checkpoint
from hpcbal.config import load_config
from hpcbal.data import open_source

pytestmark = pytest.mark.e2e

EXAMPLES = Path(__file__).parents[2] / "docs" / "examples"


def test_own_models_train_on_own_data_and_their_weights_can_be_loaded(lab, monkeypatch):
    for path in EXAMPLES.glob("waves.*"):
        shutil.copy(path, lab.folder)
    few = ("--set", "slots.per_node=1", "--set", "schedule.profiling={max_batches: 2, timed_batches: 1}")
    done = lab.start("run", "waves.yaml", "--output", "out", *few).wait(timeout_s=300)
    assert done.code == 0, done
    assert {row.state for row in lab.results().values()} == {"done"}

    monkeypatch.syspath_prepend(str(lab.folder))
    monkeypatch.delitem(sys.modules, "waves", raising=False)
    import waves

    source = open_source(load_config(lab.folder / "waves.yaml"))
    samples, labels = zip(*(source.read(i) for i in source.validation_ids), strict=True)
    for name, make in (("residual", waves.Residual), ("cnn-w8", waves.cnn)):
        state, _ = read_checkpoint(lab.out / "dnns" / name)
        keras.utils.clear_session()
        model = make((64, 1), 3, width=8)
        model(np.zeros((1, 64, 1)))
        waves.load_weights(model, lab.out / "dnns" / name / "checkpoint.h5")
        found = np.argmax(model.predict(np.stack(samples), verbose=0), axis=1)
        assert np.mean(found == np.array(labels)) == pytest.approx(state.history[-1].metrics["val_accuracy"])
