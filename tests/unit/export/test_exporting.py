"""Exported models: plain Keras gives the same outputs without hpcbal; others are refused with a way out."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from hpcbal.checkpoint.weights import read_weights
from hpcbal.cli.main import main
from hpcbal.errors import InputError, OutputError
from hpcbal.export import export_dnn, exporting

PROGRAM = Path(__file__).parent / "programs" / "load_without_hpcbal.py"
WALKS = {"dataset": "hpcbal.data:generated_series"}
MIXUP = {
    "operation": "mixup",
    "args": {"alpha": 0.5, "p": 1.0},
    "ran_on": "preprocessor",
    "outside_training": "leaves samples as they are",
}
MakeRun = Callable[..., Any]


def outputs_without_hpcbal(folder: Path, *exported: tuple[Path, np.ndarray]) -> list[np.ndarray]:
    """Return the outputs of these models in a process without hpcbal, started elsewhere."""
    arguments = []
    for number, (path, samples) in enumerate(exported):
        np.save(folder / f"samples-{number}.npy", samples)
        arguments += [str(path), str(folder / f"samples-{number}.npy")]
    clean = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        [sys.executable, str(PROGRAM), *arguments],
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
        cwd=folder,
        env=clean,
    )
    assert done.returncode == 0, done.stderr
    return [np.asarray(each) for each in json.loads(done.stdout.splitlines()[-1]).values()]


def test_models_load_without_hpcbal_and_give_the_same_outputs(make_run: MakeRun, tmp_path: Path) -> None:
    series = {"data": WALKS, "preprocessing": []}
    models: dict[str, dict[str, Any]] = {
        "hpcbal.models:resnet": {"args": {"depth": 8, "width": 4, "batch_norm": "sync"}},
        "hpcbal.models:temporal_cnn": {"args": {"filters": 4}, **series},
        "hpcbal.models:recurrent": {"args": {"units": 4}, **series},
        "exported_models:Subclassed": {"backend": {"precision": "float64"}},
        "exported_models:nested": {},
    }
    exported, wanted = [], []
    for number, (model, sections) in enumerate(models.items()):
        run = make_run(model, f"run-{number}", **sections)
        names = {3: ["3.keras", "3-saved"], 4: ["4-saved"]}.get(number, [f"{number}.keras"])
        for name in names:
            done = export_dnn(run.out, "a", tmp_path / name, None, force=False)
            assert done.weights.in_words() == "best, epoch 1, val_accuracy 0.75"
            exported.append((done.path, run.samples()))
            wanted.append(run.best_outputs)
        assert not np.allclose(run.best_outputs, run.last_outputs, atol=1e-2)
        run.replica.close()
    for found, expected in zip(outputs_without_hpcbal(tmp_path, *exported), wanted, strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("model", "name", "takes_mask"),
    [
        ("exported_models:lstm", "a.keras", True),
        ("exported_models:lstm", "a", False),
        ("hpcbal.models:temporal_cnn", "a.keras", False),
    ],
)
def test_only_what_ignores_the_mask_of_padded_samples_is_warned_about(
    make_run: MakeRun, tmp_path: Path, model: str, name: str, takes_mask: bool
) -> None:
    run = make_run(model, data=WALKS, preprocessing=[])
    notes = export_dnn(run.out, "a", tmp_path / name, None, force=False).notes
    warned = ["all samples of a call must have the same length: it takes no mask of padded ones"]
    assert notes == ([] if takes_mask else warned)


def test_the_description_says_what_the_model_takes_and_gives(make_run: MakeRun, tmp_path: Path) -> None:
    steps = [{"random_flip": {}}, {"mixup": {"alpha": 0.5}}]
    steps += [{"normalize": {"mean": 0.3, "std": 0.4, "scale": 0.0625}}]
    run = make_run("exported_models:Subclassed", preprocessing=steps)
    done = export_dnn(run.out, "a", tmp_path / "a.keras", "last", force=False)
    assert done.description == tmp_path / "a.keras.json"
    text = json.loads(done.description.read_text())
    assert text["weights"] == {
        "which": "last",
        "epoch": 2,
        "monitor": None,
        "metrics": {"val_accuracy": 0.5},
        "trained_on": run.source.fingerprint,
    }
    assert text["preprocessing"] == [
        {
            "operation": "random_flip",
            "args": {"horizontal": True, "vertical": False},
            "ran_on": "preprocessor",
            "outside_training": "leaves samples as they are",
        },
        MIXUP,
        {
            "operation": "normalize",
            "args": {"mean": 0.3, "std": 0.4, "scale": 0.0625},
            "ran_on": "device",
        },
    ]
    assert (text["input"]["shape"], text["input"]["dtype"]) == ([None, 8, 8, 1], "float32")
    assert text["output"]["shape"] == [None, 10]
    assert {"hpcbal", "keras"} <= text["versions"].keys()
    assert text["dataset"]["sample"] == {"shape": [8, 8, 1], "dtype": "uint8"}
    assert text["classes"] == {"number": 10, "names": None}
    assert (text["format"], text["model"]["callable"]) == ("keras", "exported_models:Subclassed")


@pytest.mark.parametrize(
    ("model", "reason"),
    [
        ("unregistered", "parts that Keras cannot load without your code: Unregistered; register their"),
        ("with_lambda", "a Lambda layer"),
        ("own_activation", "the function squared"),
        ("unwritable", "a layer that cannot be written to a file"),
        ("Branching", "cannot be written as layers of Keras, because its call does more"),
    ],
)
def test_what_plain_keras_cannot_load_is_refused_but_not_as_a_graph(
    make_run: MakeRun, tmp_path: Path, model: str, reason: str
) -> None:
    run = make_run(f"exported_models:{model}")
    with pytest.raises(InputError) as refused:
        export_dnn(run.out, "a", tmp_path / "a.keras", None, force=False)
    assert reason in str(refused.value)
    assert str(refused.value).startswith(f"DNN a: model exported_models:{model} ")
    assert str(refused.value).endswith("SavedModel instead, which needs no code: --to DIR")
    assert not list(tmp_path.glob("*a.keras*"))
    if model == "unregistered":
        assert export_dnn(run.out, "a", tmp_path / "a", None, force=False).path.is_dir()


def test_layers_that_a_user_has_registered_are_written_with_a_note(make_run: MakeRun, tmp_path: Path) -> None:
    run = make_run("exported_models:registered")
    done = export_dnn(run.out, "a", tmp_path / "a.keras", None, force=False)
    assert done.notes == ["import exported_models before you load it: layers of it are registered there"]
    assert json.loads(done.description.read_text())["import_before_loading"] == ["exported_models"]


def test_a_model_is_replaced_only_on_demand_and_as_a_whole(
    make_run: MakeRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    run = make_run("exported_models:Subclassed")
    for name in ("a.keras", "graph"):
        command = ["export", str(run.out), "a", "--to", str(tmp_path / name)]
        assert main(command) == 0
        shown = capsys.readouterr().out
        assert f"model:       {tmp_path / name} (best, epoch 1, val_accuracy 0.75)" in shown
        assert f"description: {tmp_path / name}.json" in shown
        assert main(command) == 2
        assert (
            f"--to: {tmp_path / name} exists; choose another name, or replace it" in capsys.readouterr().err
        )
        assert main([*command, "--weights", "last", "--force"]) == 0
        assert "(last, epoch 2)" in capsys.readouterr().out
    whole = (tmp_path / "a.keras").read_bytes()

    def fail(*args: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(exporting, "describe", fail)
    with pytest.raises(OutputError, match=r"a\.keras: cannot write the model: No space left"):
        export_dnn(run.out, "a", tmp_path / "a.keras", None, force=True)
    assert (tmp_path / "a.keras").read_bytes() == whole
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(".")]


def test_a_full_disk_is_reported_in_a_sentence_although_tensorflow_writes(
    make_run: MakeRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    run = make_run("exported_models:Subclassed")
    text = "{{function_node __wrapped__SaveV2}} a/part-00000; No space left on device [Op:SaveV2]"

    def fail(*args: Any, **given: Any) -> None:
        raise tf.errors.ResourceExhaustedError(None, None, text)

    monkeypatch.setattr(type(keras.export.ExportArchive()), "write_out", fail)
    assert main(["export", str(run.out), "a", "--to", str(tmp_path / "graph")]) == 2
    assert capsys.readouterr().err == (
        f"hpcbal: {tmp_path / 'graph'}: cannot write the model: No space left on device; free space, or "
        "choose another place with --to\n"
    )


@pytest.mark.parametrize(
    ("loss", "label", "meaning"),
    [
        (None, {}, "logits of the classes; softmax turns them into probabilities"),
        (
            "binary_crossentropy",
            {"data": {"dataset": "hpcbal.data:digit_scenes", "args": {"label": "digits", "num_samples": 9}}},
            "logits of the labels; sigmoid turns them into probabilities",
        ),
        (
            "mean_squared_error",
            {"data": {"dataset": "hpcbal.data:diabetes"}, "preprocessing": []},
            "predictions, as the loss mean_squared_error takes them",
        ),
    ],
)
def test_the_description_says_what_the_outputs_are(
    make_run: MakeRun, tmp_path: Path, loss: str | None, label: dict[str, Any], meaning: str
) -> None:
    defaults = {"defaults": {"loss": loss, "metrics": []}} if loss is not None else {}
    run = make_run("exported_models:Subclassed", **label, **defaults)
    done = export_dnn(run.out, "a", tmp_path / "a.keras", None, force=False)
    assert json.loads(done.description.read_text())["output"]["is"] == meaning


@pytest.mark.parametrize("name", ["checkpoint.h5", "best.h5"])
def test_weights_that_are_a_pipe_are_wrong_input(
    make_run: MakeRun, tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    run = make_run("exported_models:Subclassed")
    (path,) = run.out.glob(f"dnns/a/{name}")
    path.unlink()
    os.mkfifo(path)
    which = "last" if name == "checkpoint.h5" else "best"
    command = ["export", str(run.out), "a", "--to", str(tmp_path / "a.keras"), "--weights", which]
    assert main(command) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"hpcbal: {path}: cannot read the ")
    assert ": it is a pipe or a device, not a file; restore access to " in line
    assert line.count("remove it") == 1


def test_a_model_whose_code_has_changed_is_exported_with_a_note(
    make_run: MakeRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its loss on the validation samples was recorded with the weights; shapes and data are the same."""
    run, recorded = make_run("hpcbal.models:resnet", args={"depth": 8, "width": 4}), dict[str, float]()

    def read(*args: Any) -> Any:
        weights, warnings = read_weights(*args)
        return dataclasses.replace(weights, metrics={**weights.metrics, **recorded}), warnings

    monkeypatch.setattr(exporting, "read_weights", read)

    def notes() -> list[str]:
        done = export_dnn(run.out, "a", tmp_path / "a.keras", "best", force=True)
        return [note for note in done.notes if "loss" in note]

    assert notes() == []  # nothing is recorded
    samples, labels = zip(*(run.source.dataset.read(int(i)) for i in run.source.validation_ids), strict=True)
    model = keras.models.load_model(tmp_path / "a.keras")
    outputs = model.predict((np.array(samples) * 0.0625 - 0.3) / 0.4, verbose=0)
    loss = float(np.mean(keras.losses.sparse_categorical_crossentropy(np.array(labels), outputs, True)))
    recorded["val_loss"] = loss * 1.01
    assert notes() == []
    recorded["val_loss"] = loss * 1.05
    assert notes() == [
        f"a has a loss of {loss:.4g} on the validation samples, but had {loss * 1.05:.4g} when its weights "
        "were saved, so the code of its model or its data has changed: restore it, or train anew"
    ]


WRONG = [
    ((".", "a", "a.keras"), "no config.yaml: not the output directory of a run"),
    (("{out}", "b", "a.keras"), "has no DNN 'b', allowed: a"),
    (
        ("{out}", "a", "a.onnx"),
        "a.onnx, allowed for a Keras model: a name that ends in .keras (a file of Keras), or one without "
        ".onnx",
    ),
    (
        ("{out}", "a", "z.txt"),
        "z.txt, allowed for a Keras model: a name that ends in .keras (a file of Keras), or one without .txt",
    ),
    (("{out}", "a", "no/a.keras"), "no is not a directory; make it first"),
    (("{out}", "a", "run"), "exists and is no SavedModel; choose another name"),
]


def test_wrong_input_is_refused_in_a_sentence(
    make_run: MakeRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    run = make_run("exported_models:Subclassed")
    monkeypatch.chdir(tmp_path)
    for arguments, reason in WRONG:
        directory, name, to = (each.format(out=run.out) for each in arguments)
        assert main(["export", directory, name, "--to", to, "--force"]) == 2
        assert reason in capsys.readouterr().err
