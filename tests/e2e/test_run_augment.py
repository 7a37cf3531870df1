"""The example of docs/your-own-model-and-data.md on augmentation trains, here with a network of PyTorch."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

from hpcbal.checkpoint import read_checkpoint

pytestmark = pytest.mark.e2e

PAGE = Path(__file__).parents[2] / "docs" / "your-own-model-and-data.md"
NETS = """\
from torch import nn


def net(input_shape, num_classes):
    stem = nn.Conv2d(input_shape[0], 8, 3)
    return nn.Sequential(stem, nn.ReLU(), nn.Flatten(), nn.Linear(288, num_classes))
"""
CROP = {"random_crop": {"height": 8, "width": 8, "padding": 1}}


def example():
    section = PAGE.read_text().partition("## Augmentation of one DNN\n")[2].partition("\n## ")[0]
    (text,) = re.findall(r"^```yaml\n(.*?)^```$", section, re.DOTALL | re.MULTILINE)
    return yaml.safe_load(text)


def test_the_example_trains(lab):
    """TensorFlow would trace its network for each member; in test_run_torch.py one of them is augmented."""
    config = example()
    config["sweeps"][0] |= {"model": "augmented_nets:net", "args": {}}
    (lab.folder / "augmented_nets.py").write_text(NETS)
    config["dnns"] = [
        {"name": "plain", "model": "augmented_nets:net"},
        {"name": "cropped", "model": "augmented_nets:net", "augment": [CROP], "seed": 1},
    ]
    config["defaults"]["stop"]["max_epochs"] = 2
    config["data"]["max_samples"] = 400
    config["slots"] = {"per_node": 1}
    config["schedule"] = {"paradigm": "independent"}  # each network is built once
    (lab.folder / "run.yaml").write_text(yaml.safe_dump(config))
    done = lab.start("run", "run.yaml", "--output", "out").wait(timeout_s=300)
    assert done.code == 0, done
    names = {"plain", "cropped", "resnet-none", "resnet-random_crop", "resnet-random_crop-cutout"}
    assert {name: row.state for name, row in lab.results().items()} == dict.fromkeys(names, "done")
    spent = {line.dnn_id: line.facts.augment_s for line in lab.events("epoch-done")}
    assert {name for name, seconds in spent.items() if seconds} == names - {"plain", "resnet-none"}
    for name in names:
        state, _ = read_checkpoint(lab.out / "dnns" / name)
        assert [record.epoch for record in state.history] == [1, 2]
