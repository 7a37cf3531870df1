"""The example with two inputs and two outputs: trained in groups, evaluated, exported."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import numpy as np
import pytest
import yaml

from hpcbal.checkpoint.reader import read_checkpoint
from hpcbal.cli.main import main

pytestmark = pytest.mark.e2e

EXAMPLES = Path(__file__).parents[2] / "docs" / "examples"
RATES = {name: {1: 1000.0, 2: 1900.0} for name in ("keras", "torch")}


@pytest.mark.timeout(600)
def test_a_class_and_a_price_of_an_image_and_a_table(lab, monkeypatch) -> None:
    module = (EXAMPLES / "homes.py").read_text()
    (lab.folder / "homes.py").write_text(module)
    data = re.sub(r"(?m)^(from|import) (keras|torch)\b.*\n", "", module.partition("\n\ndef of_keras(")[0])
    (lab.folder / "homes_data.py").write_text(data)  # so that ranks that do not train import no framework
    config = yaml.safe_load((EXAMPLES / "homes.yaml").read_text())
    config["data"]["dataset"] = "homes_data:Homes"
    config["slots"] = {"per_node": 2, "preprocessors_per_node": 1}
    config["schedule"] = {"paradigm": "global", "profiling": lab.known_rates(RATES)}
    config["backend"] = {"collective": "mpi", "precision": "float64"}
    config["defaults"]["stop"] = {"monitor": "val_price_mae", "max_epochs": 12}
    (lab.folder / "run.yaml").write_text(yaml.safe_dump(config))
    done = lab.start("run", "run.yaml", "--output", "out").wait(timeout_s=300)
    assert done.code == 0, done
    columns = ["loss", "kind_accuracy", "price_mae", "kind_loss", "price_loss"]
    for name in RATES:
        metrics = [record.metrics for record in read_checkpoint(lab.out / "dnns" / name)[0].history]
        assert len(metrics) == 12
        assert list(metrics[0]) == [*columns, *(f"val_{column}" for column in columns)]
        last = metrics[-1]
        assert last["loss"] == pytest.approx(last["kind_loss"] + 0.5 * last["price_loss"])
        assert last["val_kind_accuracy"] > 0.9
        assert last["val_price_mae"] < 0.5

    resolved = lab.out / "config.yaml"
    resolved.write_text(resolved.read_text().replace("per_node: 2\n", "per_node: 1\n"))  # one rank evaluates
    done = lab.start("evaluate", "out", "--data", "validation", "--weights", "last").wait(timeout_s=300)
    assert done.code == 0, done
    found = json.loads((lab.out / "evaluation.json").read_text())
    assert found["measure"] == "kind_accuracy"
    for dnn in found["dnns"]:
        kept = read_checkpoint(lab.out / "dnns" / dnn["name"])[0].history[-1].metrics
        for column in columns:
            assert dnn["scores"][column] == pytest.approx(kept[f"val_{column}"], abs=1e-9)
    together = {each["name"]: each["scores"] for each in found["ensembles"]}["mean of all"]
    assert {"kind_accuracy", "kind_nll", "price_mse", "price_mae"} <= together.keys()

    monkeypatch.chdir(lab.folder)
    monkeypatch.syspath_prepend(str(lab.folder))
    monkeypatch.delitem(sys.modules, "homes", raising=False)
    for name, file in (("keras", "a.keras"), ("torch", "a.pt")):
        assert main(["export", "out", name, "--to", file, "--weights", "last"]) == 0
    import homes
    import keras
    import torch

    data = homes.Homes()
    samples, labels = zip(*(data.read(i) for i in range(9)), strict=True)
    x = {name: np.stack([sample[name] for sample in samples]).astype("float64") for name in samples[0]}
    x["photo"] = (x["photo"] / 255.0 - 0.3) / 0.3
    module = homes.of_torch({}, data.num_classes).double()
    module.load_state_dict(torch.load("a.pt"))
    with torch.no_grad():
        given = {name: torch.from_numpy(array) for name, array in x.items()}
        of_torch = module(**{**given, "photo": given["photo"].permute(0, 3, 1, 2)})
    of_keras = keras.saving.load_model("a.keras")(x)
    for outputs in (of_keras, of_torch):
        assert np.mean(np.argmax(np.asarray(outputs["kind"]), 1) == [label["kind"] for label in labels]) > 0.7
    described = json.loads((lab.folder / "a.keras.json").read_text())
    assert described["input"]["shape"] == {"photo": [None, 8, 8, 1], "facts": [None, 4]}
    assert described["output"]["shape"] == {"kind": [None, 3], "price": [None, 1]}
    ran_on = {step["operation"]: step["ran_on"] for step in described["preprocessing"]}
    assert ran_on == {"random_flip": "preprocessor", "normalize": "device"}
