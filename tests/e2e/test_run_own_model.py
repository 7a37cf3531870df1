"""The example of docs/your-own-model-and-data.md trains, and its weights can be used afterwards."""

from __future__ import annotations

import json
import re
import shutil
import sys
from pathlib import Path

import keras
import numpy as np
import pytest

from hpcbal.checkpoint.reader import read_checkpoint
from hpcbal.config import load_config
from hpcbal.data import open_source

pytestmark = pytest.mark.e2e

EXAMPLES = Path(__file__).parents[2] / "docs" / "examples"


def test_own_models_train_on_own_data_and_their_weights_can_be_loaded(lab, monkeypatch):
    for path in EXAMPLES.glob("waves.*"):
        shutil.copy(path, lab.folder)
    data = re.sub(r"(?m)^(from|import) keras\b.*\n", "", (lab.folder / "waves.py").read_text())
    data = data.partition("\n\ndef cnn(")[0]
    (lab.folder / "waves_data.py").write_text(data)  # so that ranks that do not train import no framework
    changes = (
        "data.dataset=waves_data:Waves",
        "preprocessing=[{'waves_data:shifted': {most: 4}}]",
        "slots.per_node=1",
        "schedule.profiling={max_batches: 2, timed_batches: 1}",
        "defaults.stop.max_epochs=3",
    )
    few = [word for change in changes for word in ("--set", change)]
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

    config = lab.out / "config.yaml"
    config.write_text(
        config.read_text().replace("per_node: 1\n", "per_node: 2\n")
    )  # two ranks share the work
    done = lab.start("evaluate", "out", "--json", "--weights", "last", "--dnns", "residual,cnn-*").wait(
        timeout_s=300
    )
    assert done.code == 0, done
    printed = json.loads(done.out)
    kept = json.loads((lab.out / "evaluation.json").read_text())
    assert printed == {name: value for name, value in kept.items() if name != "schema"}
    assert (printed["data"], printed["num_samples"], printed["num_ranks"]) == (
        "the validation set",
        len(labels),
        2,
    )
    for dnn in printed["dnns"]:
        state, _ = read_checkpoint(lab.out / "dnns" / dnn["name"])
        last = state.history[-1].metrics
        assert dnn["scores"]["accuracy"] == pytest.approx(last["val_accuracy"])
        assert dnn["scores"]["loss"] == pytest.approx(last["val_loss"], rel=1e-5)
        assert dnn["scores"]["nll"] == pytest.approx(last["val_loss"], rel=1e-5)
    assert [each["name"] for each in printed["ensembles"]] == ["mean of all", "greedy selection"]
