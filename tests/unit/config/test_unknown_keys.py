"""Users of other tools write keys that hpcbal does not have: what is proposed exists, and is accepted."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from hpcbal.config import load_config, resolved_yaml
from hpcbal.errors import ConfigError

JOB = 'app: "hpcbal.paramserver.apps:MLR", data: {dataset: "hpcbal.paramserver.apps:labelled"}, mini_batch: 9'
NAME = "small.1"
FILES = {
    "ensemble": """
data: {dataset: "hpcbal.data:hdf5", args: {path: a.h5}}
defaults: {batch_size: 4, optimizer: {name: sgd, learning_rate: 0.1}, stop: {max_epochs: 2}}
dnns: [{name: small.1, model: "hpcbal.models:resnet", args: {depth: 8}}]
""",
    "jobs": f"kind: jobs\njobs: [{{name: small.1, {JOB}}}]\n",
    "paramserver": yaml.safe_dump({"kind": "paramserver", **yaml.safe_load(f"{{{JOB}}}")}),
}
WORDS = """
accelerator activation adam alpha amp app args augmentation balance batch batch_size batchsize beta bf16 bs
callback checkpoint_dir class_weight classes clipnorm cluster criterion data_dir dataset decay default delta
depth devices dir dnn dropout early_stopping early_stopping_patience ensemble epoch epochs Epochs experiment
factor filters fp16 freeze from gpus gpus_per_node grad_clip height horovod hidden init input_shape
iterations keep kernel_size label layers learning_rate learning-rate log_dir loss losses LR lr_scheduler
machine max_epochs max_steps max_time mem memory metric mini_batch mode model models momentum monitor
n_epochs name nesterov network ngpus nodes normalize num_classes num_gpus num_workers objective optim out
output_dir partition path paradigm patience per_node policy precision pretrained project prune quantize
queue ranks rate rates rescale resume rule samples save_best_only scale scheduler schema search seeds server
shares shuffle size skip slot split steps stop strategy target task test test_size time timeout train_data
transforms units val_data val_split validation verbose version walltime warmup wd weight_decay weights width
worker workers
"""
PROPOSED = re.compile(r"unknown key \(did you mean '([^']+)'\?\), allowed: ")


def problem_of(path: Path, override: str) -> str:
    with pytest.raises(ConfigError) as caught:
        load_config(path, [override])
    return str(caught.value)


def values(path: Path) -> dict[str, Any]:
    """The values of a file as its keys can be written; items under their names and numbers."""
    resolved = yaml.safe_load(resolved_yaml(load_config(path)))
    listed = next((each for each in ("dnns", "jobs") if each in resolved), None)
    if listed is None:
        return resolved
    item = resolved[listed][0]
    return {**resolved, "defaults": item, listed: {item["name"]: item, "0": item}}


def value_of(tree: dict[str, Any], file: dict[str, Any], key: str) -> Any:
    """The value that a key has; of an argument that is not given, any.

    Raises:
        KeyError: there is no such key.
    """
    if key in ("dnns", "jobs", "sweeps", "defaults"):
        return file.get(key)
    value: Any = tree
    before = ""
    for part in key.replace(NAME, "NAME").split("."):
        if before == "args" and part not in value:
            return 1
        value, before = value[part.replace("NAME", NAME)], part
    return value


def sections_of(text: str) -> list[str]:
    """Sections of a file in which keys may be wrong; the first one is the file itself."""
    listed = next((each for each in ("dnns", "jobs") if each in yaml.safe_load(text)), None)
    inside = {"dnns": ["", "stop.", "optimizer."], "jobs": ["", "stop."], None: []}[listed]
    return ["", "data.", "slots.", *(f"{listed}.{NAME}.{each}" for each in inside)]


@pytest.mark.parametrize(
    ("name", "section"), [(name, section) for name, text in FILES.items() for section in sections_of(text)]
)
def test_every_key_that_is_proposed_is_accepted(tmp_path: Path, name: str, section: str) -> None:
    path = tmp_path / "run.yaml"
    path.write_text(FILES[name], encoding="utf-8")
    file, tree = yaml.safe_load(FILES[name]), values(path)
    num_proposed = 0
    for word in WORDS.split():
        found = None
        try:
            load_config(path, [f"{section}{word}=1"])
        except ConfigError as error:
            found = PROPOSED.search(str(error))
        if found is not None:
            num_proposed += 1
            accepted(path, tree, file, [f"{section}{found[1]}", found[1]])
    assert num_proposed > 5


def accepted(path: Path, tree: dict[str, Any], file: dict[str, Any], keys: list[str]) -> None:
    """Set the first of these keys that exists, to the value that it has."""
    for key in keys:
        try:
            value = value_of(tree, file, key)
        except (KeyError, TypeError):
            continue
        load_config(path, [f"{key}={json.dumps(value)}"])
        return
    raise AssertionError(f"no such key: {keys}")


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("loss=mse", "did you mean 'defaults.loss'?"),
        ("patience=3", "did you mean 'defaults.stop.patience'?"),
        ("workers=2", "did you mean 'slots.preprocessors_per_node'?"),
        ("model=x", "did you mean 'dnns.small.1.model'?"),
        ("depth=14", "did you mean 'dnns.small.1.args.depth'?"),
        ("ngpus=2", "did you mean 'slots.per_node'?"),
        ("nodes=2", "the number of nodes is that of the job: sbatch --nodes, or the host file of mpirun"),
        ("data.path=b.h5", "did you mean 'args.path'?"),
        ("data.val_split=0.1", "did you mean 'validation_fraction'?"),
        ("early_stopping=3", "did you mean 'defaults.stop.patience'?"),
        ("early_stopping.patience=3", "did you mean 'defaults.stop'?"),
        ("scheduler=cosine", "did you mean 'defaults.optimizer.schedule'?"),
        ("dropout=0.1", "if the code of the model has such an argument, give it in args"),
        ("dnns.small.1.optimizer.patience=3", "did you mean 'dnns.0.stop.patience'?"),
        ("dnns.small.1.stop.epoch=3", "did you mean 'max_epochs'?"),
        ("rescale=255", "did you mean 'normalize', an operation of preprocessing?"),
        ("random_flip={}", "did you mean 'random_flip', an operation of preprocessing?"),
        ("degrees=3", "did you mean 'degrees', an argument of random_rotation in preprocessing?"),
        ("prefix=x", "did you mean 'prefix', a key of defaults.init?"),
        ("cooldown=2", "did you mean 'cooldown', a key of defaults.optimizer.schedule?"),
        ("sampler=tpe", "did you mean 'sampler', a key of search in sweeps?"),
        ("defaults.model=x", "did you mean 'model', a key of each DNN in dnns or sweeps?"),
    ],
)
def test_a_key_of_another_tool_or_section_is_understood(tmp_path: Path, override: str, said: str) -> None:
    path = tmp_path / "run.yaml"
    path.write_text(FILES["ensemble"], encoding="utf-8")
    assert f"unknown key ({said}), allowed: " in problem_of(path, override)


@pytest.mark.parametrize("word", ["bananas", "losses_of_data", "gate", "slope", "time_line_of_x"])
def test_a_word_of_another_meaning_gets_no_proposal(tmp_path: Path, word: str) -> None:
    path = tmp_path / "run.yaml"
    path.write_text(FILES["ensemble"], encoding="utf-8")
    assert "unknown key, allowed: " in problem_of(path, f"{word}=1")
