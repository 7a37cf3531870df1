"""Members of PyTorch beside Keras: trained, killed, resumed, evaluated and exported."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import yaml
from safetensors.numpy import load_file

from hpcbal.checkpoint.reader import read_checkpoint
from hpcbal.checkpoint.weights import read_weights
from hpcbal.cli.main import main

pytestmark = pytest.mark.e2e

EXAMPLES = Path(__file__).parents[2] / "docs/examples"

NETS = '''\
import torch
from torch import nn


class Net(nn.Module):
    """Random layers, moving statistics, and a stem that weights of a file fit."""

    def __init__(self, channels, num_classes):
        super().__init__()
        convolution = nn.Conv2d(channels, 8, 3, padding=1, bias=False)
        self.stem = nn.Sequential(convolution, nn.BatchNorm2d(8), nn.ReLU())
        self.drop = nn.Dropout(0.3)
        self.logits = nn.Linear(8, num_classes)

    def forward(self, x):
        return self.logits(self.drop(self.stem(x).amax((2, 3))))


class Small(nn.Module):
    def __init__(self, num_classes):
        super().__init__()
        self.drop = nn.Dropout(0.3)
        self.logits = nn.Linear(64, num_classes)

    def forward(self, x):
        return self.logits(self.drop(x.flatten(1)))


class OwnLoss(Small):
    def loss(self, batch):
        outputs = self(batch.x)
        return nn.functional.cross_entropy(outputs, batch.y, reduction="none"), outputs


def net(input_shape, num_classes):
    return Net(input_shape[0], num_classes)


def small(input_shape, num_classes):
    return Small(num_classes)


def own_loss(input_shape, num_classes):
    return OwnLoss(num_classes)
'''

WITHOUT_HPCBAL = """\
import sys
sys.modules["hpcbal"] = None
import numpy as np, onnxruntime, torch
from safetensors.torch import load_file
from nets import net

samples = np.load("samples.npy")
found = [onnxruntime.InferenceSession("net.onnx").run(None, {"samples": samples})[0]]
for state in (torch.load("net.pt"), load_file("net.safetensors")):
    module = net((1, 8, 8), 2).eval()
    module.load_state_dict(state)
    found.append(module(torch.from_numpy(samples)).detach().numpy())
np.save("outputs.npy", np.stack(found))
"""

CONFIG = {
    "schema": 1,
    "name": "mixed",
    "seed": 3,
    "data": {"dataset": "toys:Images"},
    "defaults": {
        "batch_size": 48,
        "optimizer": {"name": "adam", "learning_rate": 0.01},
        "stop": {"max_epochs": 4},
        "accumulate": 3,
        "ema": 0.8,
    },
    "dnns": [
        {"name": "net", "model": "nets:net"},
        {
            "name": "keras",
            "model": "hpcbal.models:mlp",
            "args": {"layers": 1, "units": 8},
            "augment": [{"cutout": {"size": 3}}],
        },
    ],
    "schedule": {"paradigm": "independent"},
    "slots": {"per_node": 1, "preprocessors_per_node": 1},
    "output": {"dir": "out"},
}


def write(lab, **sections: object) -> None:
    (lab.folder / "nets.py").write_text(NETS, encoding="utf-8")
    (lab.folder / "run.yaml").write_text(yaml.safe_dump({**CONFIG, **sections}), encoding="utf-8")


@pytest.mark.timeout(600)
def test_members_of_two_frameworks_in_one_run(lab, monkeypatch, capsys) -> None:
    """The dataset is one of PyTorch, as it is. The default loss, and the same by a method."""
    shutil.copy(EXAMPLES / "bars.py", lab.folder)
    equal = [
        {"name": "plain", "model": "nets:small", "seed": 1},
        {"name": "own", "model": "nets:own_loss", "loss": "module", "metrics": ["accuracy"], "seed": 1},
    ]
    write(lab, data={"dataset": "bars:Bars"}, dnns=[*CONFIG["dnns"], *equal])
    done = lab.start("run", "run.yaml").wait(timeout_s=300)
    assert done.code == 0, done
    said = " ".join(done.out.split())
    assert "taken for images with the channels first, and become (8, 8, 1) float32" in said
    names = ("net", "keras", "plain", "own")
    assert {name: row.state for name, row in lab.results().items()} == dict.fromkeys(names, "done")
    spent = {line.dnn_id for line in lab.events("epoch-done") if line.facts.augment_s}
    assert spent == {"keras"}
    plain, own = (read_checkpoint(lab.out / "dnns" / dnn["name"])[0] for dnn in equal)
    assert list(plain.arrays) == list(own.arrays)
    for name, array in plain.arrays.items():
        np.testing.assert_array_equal(own.arrays[name], array, err_msg=name)

    done = lab.start("evaluate", "out", "--data", "validation").wait(timeout_s=300)
    assert done.code == 0, done
    assert "mean of all (4)" in done.out
    kept = {name: read_weights(lab.out / "dnns" / name)[0] for name in ("net", "keras")}
    for weights in kept.values():  # those of the averages, as while they trained
        assert f"{weights.metrics['val_accuracy']:.4f}" in done.out
    monkeypatch.chdir(lab.folder)
    monkeypatch.syspath_prepend(str(lab.folder))
    for ending, code in (("pt", 0), ("safetensors", 0), ("onnx", 0), ("keras", 2)):
        assert main(["export", "out", "net", "--to", f"net.{ending}"]) == code
        assert (lab.folder / f"net.{ending}.json").is_file() == (code == 0)
    assert (
        "allowed for a module of PyTorch: a name that ends in .pt or .safetensors" in capsys.readouterr().err
    )
    np.save(lab.folder / "samples.npy", np.random.default_rng(0).random((5, 1, 8, 8), np.float32))
    clean = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    program = [sys.executable, "-c", WITHOUT_HPCBAL]
    subprocess.run(program, cwd=lab.folder, env=clean, timeout=200, check=True)
    of_onnx, of_pt, of_safetensors = np.load(lab.folder / "outputs.npy")
    np.testing.assert_allclose(of_onnx, of_pt, rtol=1e-4, atol=1e-5)
    np.testing.assert_array_equal(of_pt, of_safetensors)
    exported = load_file(lab.folder / "net.safetensors")
    assert exported.keys() == {name.removeprefix("weights/") for name in kept["net"].arrays}
    state, _ = read_checkpoint(lab.out / "dnns" / "net")
    assert state is not None
    for name, array in exported.items():  # the averages, not the weights that training goes on from
        np.testing.assert_array_equal(array, kept["net"].arrays[f"weights/{name}"], err_msg=name)
        trained = state.arrays.get(f"optimizer/trained/{name}")
        assert (trained is None) == ("running" in name or "num_batches" in name)
        assert trained is None or not np.array_equal(trained, array)


def test_torch_distributed_sums_and_a_killed_run_resumes_bit_equal(lab) -> None:
    """Two DNNs in groups of one and two slots that come and go, and a rank that is killed in the middle.

    Random layers draw by seed, step and sample, so a calm run has the same weights and averages.
    """
    rates = {"net": {1: 1000.0, 2: 1900.0}, "other": {1: 1000.0, 2: 1900.0}}
    dnns = [
        {"name": "net", "model": "nets:net", "stop": {"max_epochs": 12}},
        {"name": "other", "model": "nets:net", "stop": {"max_epochs": 4}},
    ]
    write(
        lab,
        dnns=dnns,
        schedule={"paradigm": "global", "delta": "15%", "profiling": lab.known_rates(rates)},
        slots={"per_node": 2, "preprocessors_per_node": 1},
        checkpoint={"interval_s": 0.02},
        backend={"collective": "torch", "precision": "float64"},
    )
    done = lab.start("run", "run.yaml", "--output", "whole").wait(timeout_s=300)
    assert done.code == 0, done
    assert "torch.distributed (gloo) sums the gradients" in done.out
    running = lab.start("run", "run.yaml")
    running.until(lambda: len(lab.events("epoch-done")) >= 6, "epochs")
    running.signal_rank(2, signal.SIGKILL)
    done = running.wait(60.0)
    assert done.code != 0, done
    assert "died without an error message: killed by a signal" in done.err
    done = lab.start("run", "run.yaml").wait(timeout_s=300)
    assert done.code == 0, done
    assert_equal_files(lab.folder / "whole", lab.folder / "out")


def assert_equal_files(one: Path, other: Path) -> None:
    first, second = (read_checkpoint(folder / "dnns" / "net")[0] for folder in (one, other))
    assert first is not None
    assert second is not None
    assert list(first.arrays) == list(second.arrays)
    for name, array in first.arrays.items():
        np.testing.assert_array_equal(array, second.arrays[name], err_msg=name)
