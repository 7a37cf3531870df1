"""`k_fold` makes a member for each fold, wherever it stands, and is refused where folds cannot work."""

from __future__ import annotations

from pathlib import Path

import pytest

from hpcbal.config import EnsembleConfig, load_config
from hpcbal.config.load import resolved_yaml
from hpcbal.errors import ConfigError
from hpcbal.planning.scenario import facts_of_data, known_facts

HEAD = "defaults: {optimizer: {name: sgd, learning_rate: 0.1}, batch_size: 32, stop: {max_epochs: 2}}\n"


def load(tmp_path: Path, text: str) -> EnsembleConfig:
    path = tmp_path / "run.yaml"
    path.write_text(HEAD + text, encoding="utf-8")
    found = load_config(path)
    assert isinstance(found, EnsembleConfig)
    return found


def test_a_dnn_becomes_a_member_for_each_fold(tmp_path: Path) -> None:
    config = load(tmp_path, "dnns: [{name: a, model: m:f, k_fold: 3}, {name: b, model: m:f}]\n")
    assert [(dnn.name, dnn.k_fold, dnn.fold) for dnn in config.dnns] == [
        ("a-fold1", 3, 1),
        ("a-fold2", 3, 2),
        ("a-fold3", 3, 3),
        ("b", None, None),
    ]
    assert config.num_folds == 3
    again = tmp_path / "again.yaml"
    again.write_text(resolved_yaml(config), encoding="utf-8")
    assert load_config(again) == config


def test_defaults_and_sweeps_may_have_folds_and_a_fold_alone(tmp_path: Path) -> None:
    sweep = "sweeps: [{name: 's{n}', model: m:f, k_fold: 2, grid: {args.n: [1, 2]}}]\n"
    names = [dnn.name for dnn in load(tmp_path, sweep).dnns]
    assert names == ["s1-fold1", "s1-fold2", "s2-fold1", "s2-fold2"]
    (alone,) = load(tmp_path, "dnns: [{name: a, model: m:f, k_fold: 5, fold: 2}]\n").dnns
    assert (alone.name, alone.fold) == ("a", 2)


def test_members_are_validated_without_validation_samples(tmp_path: Path) -> None:
    rest = "data: {validation_fraction: 0}\n"
    stop = "stop: {patience: 1, max_epochs: 2}"
    assert load(tmp_path, f"dnns: [{{name: a, model: m:f, k_fold: 2, {stop}}}]\n{rest}").num_folds == 2
    with pytest.raises(ConfigError, match=r"data\.validation_fraction is 0"):
        load(tmp_path, f"dnns: [{{name: a, model: m:f, {stop}}}]\n{rest}")


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("dnns: [{name: a, model: m:f, k_fold: 1}]", "k_fold: got 1, allowed: null or a whole number from 2"),
        ("dnns: [{name: a, model: m:f, k_fold: 2, fold: 3}]", r"fold: got 3, allowed: 1 to k_fold \(2\)"),
        ("dnns: [{name: a-fold1, model: m:f}]", "got a-fold1, allowed without k_fold: a name that does not"),
        ("dnns: [{name: a, model: m:f, fold: 1}]", "fold: got 1, allowed: leave it out without k_fold"),
        (
            "dnns: [{name: a, model: m:f, k_fold: 2}, {name: b, model: m:f, k_fold: 3}]",
            "got k_fold 2 and 3, allowed: one number of folds",
        ),
        (
            "dnns: [{name: a, model: m:f, k_fold: 2}]\ndata: {sampling: balanced}",
            "got sampling: balanced, allowed with k_fold: random",
        ),
        (
            "dnns: [{name: a, model: m:f, k_fold: 2}]\ndata: {access: partitioned}",
            "got access: partitioned, allowed with k_fold: shared",
        ),
        (
            "dnns: [{name: a, model: m:f, k_fold: 2}]\nprune: {rule: committee}",
            "got committee, allowed with k_fold: none, asha, median, because members of folds predict no",
        ),
        (
            "sweeps: [{name: 's{sample}', model: m:f, k_fold: 2, search: {samples: 4, sampler: tpe, "
            "startup: 2, space: {args.n: {integers: [1, 9]}}}}]",
            "got search.sampler: tpe, allowed with k_fold: random",
        ),
    ],
)
def test_what_cannot_have_folds_is_refused(tmp_path: Path, text: str, problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        load(tmp_path, text + "\n")


def test_predictions_count_that_all_training_samples_are_validated(tmp_path: Path) -> None:
    data = "data: {dataset: hpcbal.data:digits, validation_fraction: 0.2}"
    text = f"dnns: [{{name: a, model: m:f, k_fold: 2}}]\n{data}\n"
    folds = load(tmp_path, text)
    facts, plain = known_facts(folds), known_facts(load(tmp_path, text.replace(", k_fold: 2", "")))
    assert facts is not None
    assert plain is not None
    assert facts.num_train == plain.num_train == 1438
    assert facts.num_validation == plain.num_validation + 1438
    assert facts_of_data(folds).num_validation == facts.num_validation
