"""A search proposes DNNs as slots become free; a run that is killed in between proposes the same."""

from __future__ import annotations

import math
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hpcbal.cli.main import main
from hpcbal.config import load_ensemble
from hpcbal.config.schema.prune import OpenSearchConfig
from hpcbal.config.submission import with_expected
from hpcbal.ensembling.evidence import encoded
from hpcbal.ensembling.selection import KnownPredictions, changes_by_each
from hpcbal.errors import InputError
from hpcbal.runtime.record import requests
from hpcbal.runtime.roles import scheduler
from hpcbal.searching import Result, propose

NUM_SAMPLES, NUM_FIRST = 6, 3
SWEEP = {
    "name": "net-{sample}",
    "model": "in_process_toys:toy",
    "args": {"hook": "act"},
    "stop": {"max_epochs": 2},
    "search": {
        "sampler": "tpe",
        "samples": NUM_SAMPLES,
        "startup": NUM_FIRST,
        "space": {
            "optimizer.learning_rate": {"log_uniform": [1e-4, 1.0]},
            "optimizer.momentum": {"choice": [0.0, 0.5, 0.9]},
        },
    },
}


@pytest.fixture(autouse=True)
def looks_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scheduler, "LOOK_INTERVAL_S", 0.0)


def use(
    lab: Any,
    paradigm: str = "global",
    output: str = "out",
    own: str = "a",
    purpose: str = "best",
    **sections: Any,
) -> None:
    def with_rates(config: dict[str, Any]) -> None:
        names = {f"net-{number}": {1: 5e5, 2: 9e5} for number in range(NUM_FIRST)}
        config["backend"]["rates"] |= {**names, own: {1: 4e5, 2: 7.8e5}}

    sweep = {**SWEEP, "search": {**SWEEP["search"], "for": purpose}}
    lab.use(paradigm, output, dnns=[lab.dnn(own, 1)], sweeps=[sweep], change=with_rates, **sections)
    lab.at_steps([], lambda: None)


def drawn(lab: Any) -> dict[str, Any]:
    """The values of all DNNs of the search, as the run's directory has them."""
    (search,) = load_ensemble(lab.out / "config.yaml").searches
    assert search.num_open == 0
    return {name: dict(values) for name, values in search.drawn.items()}


@pytest.mark.parametrize("paradigm", ["global", "independent"])
def test_every_sample_is_proposed_and_trained(lab: Any, paradigm: str, capsys: Any) -> None:
    use(lab, paradigm)
    assert lab.run() == 0
    states = lab.states()
    assert states.pop("a") == ("done", 1)
    assert states == {f"net-{number}": ("done", 2) for number in range(NUM_SAMPLES)}
    proposed = lab.events("dnn-added")
    assert [line.dnn_id for line in proposed] == [f"net-{n}" for n in range(NUM_FIRST, NUM_SAMPLES)]
    assert {name: drawn(lab)[name].keys() for name in drawn(lab) if int(name[-1]) >= NUM_FIRST} == {
        line.dnn_id: line.drawn.keys() for line in proposed
    }
    config = load_ensemble(lab.out / "config.yaml")
    rates = {dnn.name: dnn.optimizer.learning_rate for dnn in config.dnns}
    assert all(str(rates[line.dnn_id]) == line.drawn["optimizer.learning_rate"] for line in proposed)
    assert {line.drawn["optimizer.momentum"] for line in proposed} <= {"0.0", "0.5", "0.9"}
    assert "net-5 joins the run, proposed: optimizer.learning_rate" in capsys.readouterr().out
    assert lab.run() == 0, "nothing is left to do"


def test_stops_and_deaths_change_no_proposal(lab: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[list[Result]] = []

    def noted(search: OpenSearchConfig, results: list[Result], seed: int, *, more_is_better: bool) -> Any:
        assert not more_is_better, "the loss of a committee, not the accuracy"
        told.append(results)
        return propose(search, results, seed, more_is_better=more_is_better)

    use(lab, "homogeneous", output="calm", purpose="committee")
    with monkeypatch.context() as patch:
        patch.setattr(requests, "propose", noted)
        assert lab.run() == 0
    assert any(each.state == "over" for each in told[-1])
    assert not [each for results in told for each in results if each.state == "failed"]
    assert any(results[-1].state == "training" for results in told[1:]), "those proposed just before"
    for each in told[-1]:
        assert [math.isfinite(value) for value in each.curve] == [False, True] * (each.state == "over")
    calm = drawn(lab)
    use(lab, "homogeneous", purpose="committee")
    lab.stop_at(8, rank=2)
    lab.kill_when(lambda: len(lab.events("dnn-added")) > 0)
    lab.stop_at(2, rank=1)
    assert lab.run() == 0
    assert drawn(lab) == calm
    assert {state for state, _ in lab.states().values()} == {"done"}


def test_with_a_rule_promoted_dnns_come_before_new_ones(lab: Any) -> None:
    use(lab, prune={"rule": "asha", "reduction": 2, "min_epochs": 1, "dnns": ["net-*"]})
    assert lab.run() == 0
    states = lab.states()
    assert len(states) == 1 + NUM_SAMPLES
    assert {state for state, _ in states.values()} == {"done", "pruned"}


def test_a_search_that_fails_ends_and_the_run_goes_on_with_what_it_has(
    lab: Any, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    def fail(*args: Any, **options: Any) -> None:
        raise InputError("the sampler is broken")

    use(lab)
    with monkeypatch.context() as patch:
        patch.setattr(requests, "propose", fail)
        assert lab.run() == 0
    assert "no more DNNs are proposed: the sampler is broken" in capsys.readouterr().out
    assert len(lab.states()) == 1 + NUM_FIRST
    assert lab.run() == 0, "the next start asks again"
    assert len(lab.states()) == 1 + NUM_SAMPLES


def search_of(**changes: Any) -> OpenSearchConfig:
    space = {
        "lr": {"log_uniform": [1e-4, 1.0]},
        "m": {"uniform": [0.0, 0.99]},
        "w": {"choice": ["a", "b", "c"]},
    }
    search = {"samples": 40, "sampler": "tpe", "startup": 8, "space": space, **changes}
    return OpenSearchConfig.model_validate({"name": "n-{sample}", "search": search, "dnn": {}})


def score(values: Any) -> float:
    return -abs(values["lr"] - 0.01) - (values["w"] != 1)


def test_proposals_follow_from_seed_and_results_alone_and_get_better() -> None:
    search = search_of()
    first = [Result(each, "over", [score(each)]) for each in search.search.draws(3, search.name)[:8]]

    def of(seed: int) -> list[Result]:
        results = list(first)
        while len(results) < 30:
            values = propose(search, results, seed, more_is_better=True)
            results.append(Result(values, "over", [score(values)]))
        return results

    found = of(1)
    assert of(1) == found
    assert of(2) != found
    assert sum(each.drawn["w"] == 1 for each in found[8:]) > 11, "more than a third is of the best kind"
    turned = propose(search, [Result(r.drawn, "over", [-r.curve[0]]) for r in found], 1, more_is_better=False)
    assert turned == propose(search, found, 1, more_is_better=True)


def test_for_a_committee_proposals_go_where_its_members_are_weak() -> None:
    search = search_of(space={"w": {"choice": ["even", "odd"]}}, **{"for": "committee"})
    is_even, known, states = np.arange(60) % 2 == 0, {}, {}
    for number in range(20):
        knows_even = number % 4 > 0
        losses = np.where(is_even == knows_even, 0.05 if knows_even else 0.3, 2.0) + 0.001 * number
        known[str(number)] = [-float(losses.mean())], [encoded(np.exp(-losses), "classes")]
        states[str(number)] = {"w": int(not knows_even)}
    found = KnownPredictions.of(known)
    assert found is not None
    changes = changes_by_each(found.rows, found.loss)

    def odd_ones(values: list[float]) -> int:
        results = [Result(own, "over", [value]) for own, value in zip(states.values(), values, strict=True)]
        return sum(propose(search, results, seed, more_is_better=False)["w"] == 1 for seed in range(10))

    assert odd_ones([-values[0] for values, _ in known.values()]) <= 3, "each alone is worse"
    assert odd_ones(changes) >= 7


def test_dnns_that_failed_or_are_outside_of_the_space_teach_nothing() -> None:
    search = search_of()
    known = [Result(each, "over", [score(each)]) for each in search.search.draws(3, search.name)[:8]]
    outside = Result({"lr": 5.0, "m": 0.5, "w": 0}, "over", [9.0])
    failed = Result({"lr": 0.5, "m": 0.5, "w": 0}, "failed")
    assert propose(search, [*known, failed], 1, more_is_better=True) == propose(
        search, [*known, outside], 1, more_is_better=True
    )
    early = Result({"lr": 0.5, "m": 0.5, "w": 0}, "early", [0.1, float("nan")])
    training = Result({"lr": 0.5, "m": 0.5, "w": 0}, "training", [0.1])
    for more in (early, training):
        assert propose(search, [*known, more], 1, more_is_better=True)


def test_without_optuna_a_sentence_says_what_to_install(
    lab: Any, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    monkeypatch.setitem(sys.modules, "optuna", None)
    with pytest.raises(InputError, match=r"needs optuna .*; pip install 'hpcbal\[search\]'"):
        propose(search_of(), [], 1, more_is_better=True)
    use(lab)
    assert main(["validate", str(Path(lab.out).parent / "run.yaml")]) == 2
    assert "search.sampler: got tpe, which needs optuna, not installed here" in capsys.readouterr().err


def test_an_error_of_optuna_ends_the_search_and_not_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*args: Any, **options: Any) -> None:
        raise ValueError("nan in the sampler")

    import optuna

    monkeypatch.setattr(optuna, "create_study", fail)
    with pytest.raises(InputError, match=r"sweep n-\{sample\}: optuna proposes nothing \(ValueError: nan in"):
        propose(search_of(), [], 1, more_is_better=True)


def test_plan_and_simulate_say_what_they_assume_of_dnns_that_do_not_exist_yet(lab: Any, capsys: Any) -> None:
    use(lab, own="NET-4")
    for verb in (["plan", "--samples", "60"], ["simulate", "--samples", "60", "--slots", "2"]):
        assert main([verb[0], str(Path(lab.out).parent / "run.yaml"), *verb[1:]]) == 0
        shown = capsys.readouterr()
        assert "sweep net-{sample}: 3 of 6 DNNs are proposed while the run goes on" in shown.err
        assert "as if they were like net-0" in shown.err
        assert "7" in shown.out
    config, _ = with_expected(load_ensemble(Path(lab.out).parent / "run.yaml"))
    assert [dnn.name for dnn in config.dnns[-3:]] == ["net-3", "net-5", "net-6"], "one name is taken"


def test_what_a_sweep_with_proposals_cannot_have_is_refused(lab: Any, capsys: Any) -> None:
    for change, text in (
        ({"name": "net"}, "allowed with search.sampler: tpe: a name with {sample}"),
        ({"grid": {"args.x": [1]}}, "allowed beside search.sampler: tpe: search.space only"),
    ):
        lab.use(dnns=[lab.dnn("a", 1)], sweeps=[{**SWEEP, **change}])
        assert main(["validate", str(Path(lab.out).parent / "run.yaml")]) == 2
        assert text in capsys.readouterr().err
