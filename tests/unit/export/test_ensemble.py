"""An exported ensemble is one model that predicts as its members do, without hpcbal."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
import yaml

from hpcbal.checkpoint.background import BackgroundWriter
from hpcbal.checkpoint.best import BEST_BY
from hpcbal.checkpoint.state import TrainingState
from hpcbal.cli.main import main
from hpcbal.config import load_ensemble, resolved_yaml
from hpcbal.config.checks.frameworks import framework_of
from hpcbal.data import open_source
from hpcbal.dataplane.reader import Batch
from hpcbal.errors import InputError
from hpcbal.events.history import EpochRecord, Position
from hpcbal.export import export_ensemble
from hpcbal.telemetry.views.evaluation import EvaluatedDnn, EvaluatedEnsemble, Evaluation, write_evaluation
from hpcbal.training.frameworks import load_framework

PAGE = (Path(__file__).parents[3] / "docs" / "after-training.md").read_text(encoding="utf-8")
PROGRAM = Path(__file__).parent / "programs" / "call_ensemble.py"
KERAS = ("exported_models:Subclassed", "exported_models:nested")
MIXED = (KERAS[1], "torch_modules:normalised")
SHARES = (0.75, 0.25)
BYTES = [
    {"random_flip": {}},
    {"normalize": {"mean": 0.3, "std": 0.4, "scale": 0.0625}},
    {"cutout": {"size": 2}},
]
MakeTeam = Callable[..., "Team"]


class Team:
    """The output directory of a run that was evaluated, and the predictions of its DNNs for a few samples."""

    def __init__(self, folder: Path, models: Sequence[str], shares: Sequence[float], **sections: Any) -> None:
        self.out = folder / "out"
        self.out.mkdir()
        names = [f"dnn-{number}" for number in range(len(models))]
        defaults = {
            "optimizer": {"name": "sgd", "learning_rate": 0.1},
            "batch_size": 16,
            "stop": {"max_epochs": 2},
        }
        dnns = [{"name": name, "model": model} for name, model in zip(names, models, strict=True)]
        given = {"schema": 1, "preprocessing": BYTES, **sections, "defaults": defaults, "dnns": dnns}
        (folder / "run.yaml").write_text(yaml.safe_dump(given), encoding="utf-8")
        config = load_ensemble(folder / "run.yaml")
        (self.out / "config.yaml").write_text(resolved_yaml(config), encoding="utf-8")
        source = open_source(config)
        ids = source.validation_ids[:5]
        self.raw = np.stack([np.asarray(source.dataset.read(int(i))[0]) for i in ids])
        made = [source.sample(int(i), 0, training=False) for i in ids]
        batch = Batch(ids, np.stack([x.copy() for x, _ in made]), np.stack([y.copy() for _, y in made]))
        rng = np.random.default_rng(0)
        self.predictions = []
        for dnn in config.dnns:
            backend = load_framework(
                framework_of(dnn, config.backend), config.backend.precision, None, "a test"
            )
            replica = backend.build(
                dnn, source.sample_spec, source.num_classes, 0, source.on_device, source.label_spec
            )
            arrays = {
                name: (array + rng.uniform(0.0, 0.05, array.shape)).astype(array.dtype)
                if array.dtype.kind == "f"
                else array
                for name, array in replica.state().items()
            }
            history = (EpochRecord(1, 1, {"val_accuracy": 0.5}),)
            state = TrainingState(dnn.name, 1, Position(1), history, arrays, source.fingerprint)
            with BackgroundWriter() as writer:
                best = dataclasses.replace(state, meta={BEST_BY: "val_accuracy"})
                writer.submit(self.out / "dnns" / dnn.name, best, best=True)
                writer.wait()
            replica.load_state(arrays)
            self.predictions.append(np.asarray(replica.predict(batch)))
            replica.close()
        self.evaluation = Evaluation(
            run="run",
            data="the test set",
            is_test=True,
            num_samples=5,
            measure="accuracy",
            more_is_better=True,
            evaluated_at="now",
            num_ranks=1,
            dnns=tuple(
                EvaluatedDnn(name, "best", 1, {"accuracy": 0.5 + 0.1 * i}, share)
                for i, (name, share) in enumerate(zip(names, shares, strict=True))
            ),
            ensembles=(
                EvaluatedEnsemble("greedy selection", len(models), {}, {"temperature": 0.5, "nll": 0.1}),
            ),
        )
        write_evaluation(self.out / "evaluation.json", self.evaluation)

    def mean(self, shares: Sequence[float]) -> np.ndarray:
        """Return the weighted mean of what its DNNs predict."""
        return sum(share * each for share, each in zip(shares, self.predictions, strict=True))


@pytest.fixture
def make_team(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> MakeTeam:
    monkeypatch.syspath_prepend(str(PROGRAM.parent))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "-1")  # as the verb does
    return lambda models, shares=SHARES, **sections: Team(tmp_path, models, shares[: len(models)], **sections)


def check_predictions(team: Team, folder: Path, model: Path) -> None:
    """A file predicts any number of samples as the members of the team do, without hpcbal and Keras."""
    np.save(folder / "samples.npy", team.raw.astype(np.float32))
    clean = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    words = [sys.executable, str(PROGRAM), str(model), "samples.npy", "outputs.npz"]
    subprocess.run(words, cwd=folder, env=clean, check=True, timeout=200)
    found = np.load(folder / "outputs.npz")
    np.testing.assert_allclose(found["one"], team.mean(SHARES)[:1], rtol=0.0, atol=1e-6)
    np.testing.assert_allclose(found["all"], team.mean(SHARES), rtol=0.0, atol=1e-6)


@pytest.mark.timeout(300)
def test_modules_of_pytorch_become_one_program(make_team: MakeTeam, tmp_path: Path) -> None:
    team = make_team([MIXED[1]] * 2)
    export_ensemble(team.out, "greedy", tmp_path / "all.pt2", force=False)
    check_predictions(team, tmp_path, tmp_path / "all.pt2")


@pytest.mark.timeout(600)
def test_members_of_both_frameworks_become_one_network(
    make_team: MakeTeam, tmp_path: Path, capsys: Any
) -> None:
    team = make_team(MIXED)
    samples = team.raw.astype(np.float32)
    to = tmp_path / "all.onnx"
    assert main(["export", str(team.out), "--ensemble", "greedy", "--to", str(to)]) == 0
    said = capsys.readouterr().out
    assert "2 DNNs, by share: dnn-0 0.75, dnn-1 0.25" in said
    assert "times that of dnn-1, the best member" in said
    check_predictions(team, tmp_path, to)
    text = json.loads((tmp_path / "all.onnx.json").read_text())
    assert [step["in_the_model"] for step in text["preprocessing"]] == [False, True, False]
    assert text["input"]["shape"] == [None, *samples.shape[1:]]
    assert text["output"] == {
        "is": "the mean of the members' probabilities of the classes, weighted by their shares",
        "shape": [None, 10],
    }
    assert text["ensemble"]["calibration"] == {"temperature": 0.5, "nll": 0.1}
    assert [member["share"] for member in text["ensemble"]["members"]] == list(SHARES)
    with pytest.raises(InputError, match=r"members of PyTorch: a name that ends in \.onnx or \.pt2"):
        export_ensemble(team.out, "mean", tmp_path / "all.keras", force=False)


@pytest.mark.timeout(300)
def test_keras_models_become_one_of_plain_layers(
    make_team: MakeTeam, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    team = make_team(KERAS, backend={"precision": "float64"})
    names = ("all.keras", "ensemble")
    done = [export_ensemble(team.out, "mean", tmp_path / name, force=False) for name in names]
    for each in done:
        assert each.written.difference < 1e-6
        assert each.num_tried > len(team.raw)
    wanted, samples = team.mean((0.5, 0.5)), team.raw.astype(np.float32)
    model = keras.saving.load_model(tmp_path / "all.keras")
    np.testing.assert_allclose(np.asarray(model(samples, training=False)), wanted, rtol=0.0, atol=1e-6)
    monkeypatch.chdir(tmp_path)
    known: dict[str, Any] = {"tf": tf, "samples": samples}
    for line in re.findall(r"`([^`]+ = [^`]+)`", re.findall(r"^\| `ensemble` \(.*$", PAGE, re.MULTILINE)[0]):
        exec(line, known)
    np.testing.assert_allclose(np.asarray(known["outputs"]), wanted, rtol=0.0, atol=1e-6)


def test_an_ensemble_is_the_one_that_was_evaluated(make_team: MakeTeam, tmp_path: Path, capsys: Any) -> None:
    team = make_team(KERAS[1:])
    words = ["export", str(team.out), "--ensemble", "greedy", "--to", str(tmp_path / "all.keras")]

    def refused(*more: str) -> str:
        assert main([*words, *more]) == 2
        return " ".join(capsys.readouterr().err.split())

    trained = dataclasses.replace(team.evaluation.dnns[0], epoch=7)
    write_evaluation(team.out / "evaluation.json", dataclasses.replace(team.evaluation, dnns=(trained,)))
    assert (
        "dnn-0 was evaluated after epoch 7, and has other weights now (epoch 1); evaluate again" in refused()
    )
    unknown = dataclasses.replace(team.evaluation.dnns[0], name="gone")
    write_evaluation(team.out / "evaluation.json", dataclasses.replace(team.evaluation, dnns=(unknown,)))
    assert "names the DNN gone, which the run has no more: evaluate again" in refused()
    unselected = dataclasses.replace(team.evaluation.dnns[0], share=None)
    write_evaluation(team.out / "evaluation.json", dataclasses.replace(team.evaluation, dnns=(unselected,)))
    assert "has selected no DNNs (its notes say why), allowed: mean" in refused()
    assert "--weights: allowed with a NAME" in refused("--weights", "last")
    (team.out / "evaluation.json").unlink()
    assert "its DNNs were not evaluated; do that first" in refused()
    words.insert(2, "dnn-0")
    assert "--ensemble: got the name dnn-0, too, allowed: one of both" in refused()


def test_samples_that_differ_in_size_are_refused(make_team: MakeTeam, tmp_path: Path) -> None:
    team = make_team(KERAS[1:])
    config = yaml.safe_load((team.out / "config.yaml").read_text())
    config["data"] = {"dataset": "hpcbal.data:generated_series"}
    config["preprocessing"] = []
    (team.out / "config.yaml").write_text(yaml.safe_dump(config))
    with pytest.raises(InputError, match="which differ in size, allowed: samples of one shape"):
        export_ensemble(team.out, "mean", tmp_path / "all.keras", force=False)
