"""Frameworks that a run loads: also those of models that its searches may propose later."""

from __future__ import annotations

from pathlib import Path

import pytest

from hpcbal.config import EnsembleConfig, load_of_kind
from hpcbal.training.frameworks import needs_of, with_models_to_come

TEXT = """\
defaults: {{optimizer: {{name: sgd, learning_rate: 0.1}}, batch_size: 8, stop: {{max_epochs: 1}}}}
sweeps:
  - name: "a-{{sample}}"
    search: {{sampler: tpe, samples: 4, startup: 1, space: {{{space}}}}}
    {model}
"""


@pytest.mark.parametrize(
    ("space", "model", "needed"),
    [
        ('model: {choice: ["hpcbal.models:mlp", "hpcbal.models.torch:mlp"]}', "", {"tensorflow", "torch"}),
        ("args.units: {integers: [8, 16]}", "model: hpcbal.models.torch:mlp", {"torch"}),
        ("framework: {choice: [tensorflow, torch]}", "model: own:net", {"tensorflow", "torch"}),
    ],
)
def test_frameworks_of_all_choices_are_loaded(
    tmp_path: Path, space: str, model: str, needed: set[str]
) -> None:
    (tmp_path / "own.py").write_text("def net(shape, num_classes):\n    return None\n", encoding="utf-8")
    path = tmp_path / "run.yaml"
    path.write_text(TEXT.format(space=space, model=model), encoding="utf-8")
    config = load_of_kind(EnsembleConfig, path)
    assert needs_of(with_models_to_come(config), config.backend).keys() == needed
