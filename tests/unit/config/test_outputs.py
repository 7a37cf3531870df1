"""Losses, weights and metrics by output, and arrays by name, as the file gives them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from hpcbal.config import load_ensemble, resolved_yaml
from hpcbal.config.schema.objective import LossConfig
from hpcbal.errors import ConfigError
from hpcbal.events.history import is_more_better

TWO = {"kind": None, "price": "mse"}


def load(tmp_path: Path, dnns: list[dict[str, Any]] | None = None, **defaults: Any) -> Any:
    config = {
        "schema": 1,
        "name": "x",
        "defaults": {
            "batch_size": 4,
            "optimizer": {"name": "sgd", "learning_rate": 0.1},
            "stop": {"max_epochs": 3},
            **defaults,
        },
        "dnns": dnns or [{"name": "a", "model": "hpcbal.models:softmax"}],
    }
    path = tmp_path / "x.yaml"
    path.write_text(yaml.safe_dump(config))
    return load_ensemble(path)


def test_names_of_outputs_begin_those_of_losses_and_metrics(tmp_path: Path) -> None:
    (dnn,) = load(tmp_path, loss=TWO, metrics={"price": ["mae", "r2_score"]}, loss_weights={"price": 2}).dnns
    assert dnn.outputs == ("kind", "price")
    assert dnn.metric_keys == ("kind_accuracy", "price_mae", "price_r2_score")
    assert dnn.loss_keys == ("kind_loss", "price_loss")
    assert dnn.stop.watched == "val_loss"
    own = dnn.of_output("price")
    assert isinstance(own.loss, LossConfig)
    assert (own.loss.name, [metric.key for metric in own.metrics]) == ("mse", ["mae", "r2_score"])
    assert dnn.of_output("kind").loss is None
    assert (is_more_better("val_price_mae"), is_more_better("price_r2_score")) == (False, True)


def test_a_single_output_has_no_prefix(tmp_path: Path) -> None:
    (dnn,) = load(tmp_path, loss={"price": "mse"}, metrics={"price": ["mae"]}).dnns
    assert (dnn.metric_keys, dnn.loss_keys, dnn.stop.watched) == (("mae",), (), "val_mae")


def test_outputs_are_completed_one_by_one_from_the_defaults(tmp_path: Path) -> None:
    model = "hpcbal.models:softmax"
    dnns = [
        {"name": "a", "model": model, "loss": {"price": {"name": "huber"}}},
        {"name": "b", "model": model, "loss": "mse"},
        {"name": "c", "model": model, "loss": {"price": {"args": {"delta": 3.0}}}},
    ]
    default = {"kind": None, "price": {"name": "huber", "args": {"delta": 2.0}}}
    a, b, c = (dnn.loss for dnn in load(tmp_path, dnns, loss=default).dnns)
    assert a == {"kind": None, "price": LossConfig(name="huber")}
    assert b == LossConfig(name="mse")
    assert c == {"kind": None, "price": LossConfig(name="huber", args={"delta": 3.0})}
    (other,) = load(tmp_path, [{"name": "a", "model": model, "loss": TWO}], loss="mse").dnns
    assert other.loss == {"kind": None, "price": LossConfig(name="mse")}


def test_the_written_configuration_is_read_back(tmp_path: Path) -> None:
    steps = [{"random_flip": None, "of": "photo"}, {"normalize": None, "of": ["photo", "depth"]}]
    path = tmp_path / "x.yaml"
    load(tmp_path, loss=TWO, metrics={"price": ["mae"]}, loss_weights={"kind": 0.5})
    given = yaml.safe_load(path.read_text())
    path.write_text(yaml.safe_dump({**given, "preprocessing": steps}))
    config = load_ensemble(path)
    assert [step.of for step in config.preprocessing] == [("photo",), ("photo", "depth")]
    path.write_text(resolved_yaml(config))
    assert load_ensemble(path) == config


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"loss": {"kind": None, "price": "msee"}}, "loss.price.name: got 'msee' (did you mean 'mse'?)"),
        ({"loss": {"kind": 3, "price": "mse"}}, "loss.kind: got 3, allowed: "),
        (
            {"metrics": {"prise": ["mae"]}},
            "got the output 'prise' (did you mean 'price'?), allowed: the outputs",
        ),
        ({"metrics": ["mae"]}, "metrics: got a list, allowed with several outputs: a mapping {output: list}"),
        ({"metrics": {"price": ["maee"]}}, "metrics.price.0.name: got 'maee' (did you mean 'mae'?)"),
        ({"loss_weights": {"price": 0}}, "loss_weights.price: got 0, allowed: null or a mapping"),
        (
            {"loss_weights": {"price": float("inf")}},
            "loss_weights.price: got .inf, allowed: null or a mapping",
        ),
        ({"loss_weights": {"pric": 1}}, "got the output 'pric' (did you mean 'price'?)"),
        ({"loss": "mse", "loss_weights": {"price": 1}}, "allowed: none, because loss is not a mapping"),
        ({"label_smoothing": 0.1}, "label_smoothing: got 0.1, allowed with several outputs: a mapping {out"),
        ({"label_smoothing": {"kind": 1}}, "label_smoothing.kind: got 1, allowed: 0 <= label_smoothing < 1"),
        ({"label_smoothing": {"kid": 0.1}}, "got the output 'kid' (did you mean 'kind'?), allowed: the out"),
        ({"loss": None, "label_smoothing": {"a": 0.1}}, "allowed: none, because loss is not a mapping"),
        ({"class_weights": "balanced"}, "got 'balanced', allowed with several outputs: leave it out"),
        ({"loss": {"kind": "module", "price": "mse"}}, "or module alone, for a module that computes"),
        (
            {"stop": {"max_epochs": 3, "monitor": "val_kind_acuracy"}},
            "got 'val_kind_acuracy' (did you mean 'val_kind_accuracy'?), allowed: loss, kind_accuracy, ",
        ),
    ],
)
def test_mistakes_are_named(tmp_path: Path, given: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as raised:
        load(tmp_path, **{"loss": TWO, **given})
    assert message in str(raised.value)
