"""DNNs that join a run that is under way train like all others, whatever kills the run in between."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
import yaml

from hpcbal.cli.main import main
from hpcbal.config import load_ensemble
from hpcbal.errors import ConfigError, InputError
from hpcbal.runtime.handoff.submissions import submission_files
from hpcbal.runtime.roles import scheduler
from hpcbal.telemetry.files.run_directory import RunDirectory


@pytest.fixture(autouse=True)
def looks_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scheduler, "LOOK_INTERVAL_S", 0.0)


def add(lab: Any, *names: str, **keys: Any) -> int:
    """Ask for DNNs of one epoch."""
    file = Path(lab.out).parent / "more.yaml"
    dnns = [{**lab.dnn(name, 1), **keys} for name in names]
    defaults = {"batch_size": 16, "optimizer": {"name": "sgd", "learning_rate": 0.05}}
    rates = {name: {1: 5e5} for name in names}
    file.write_text(yaml.safe_dump({"defaults": defaults, "dnns": dnns, "backend": {"rates": rates}}))
    return main(["add", str(lab.out), str(file)])


def adds_at(lab: Any, step: int, *names: str) -> None:
    """Let DNNs join in this training step, which lasts until the run has noticed."""

    def act() -> None:
        deadline_s = time.monotonic() + 30.0
        while not (lab.out / "status.json").exists():
            assert time.monotonic() < deadline_s, "no status"
            time.sleep(0.001)
        assert add(lab, *names) == 0
        while len(lab.events("dnn-added")) < len(names):
            assert time.monotonic() < deadline_s, "nobody joins"
            time.sleep(0.001)

    lab.at_steps([step], act)


def tpe(lab: Any) -> dict[str, Any]:
    space = {"args.seed": {"integers": [0, 9]}}
    search = {"sampler": "tpe", "samples": 4, "startup": 2, "space": space}
    return {**lab.dnn("s{sample}", 1), "search": search}


@pytest.mark.parametrize("paradigm", ["global", "independent"])
def test_dnns_that_join_are_trained_and_belong_to_the_run(lab: Any, paradigm: str, capsys: Any) -> None:
    lab.use(paradigm, dnns=lab.dnns(hook="act"))
    adds_at(lab, 2, "late", "later")
    assert lab.run() == 0
    wanted = {name: ("done", epochs) for name, epochs in lab.epochs.items()}
    wanted |= {"late": ("done", 1), "later": ("done", 1)}
    assert lab.states() == wanted
    assert "late joins the run" in capsys.readouterr().out
    config = load_ensemble(lab.out / "config.yaml")
    assert [dnn.name for dnn in config.dnns] == ["a", "b", "c", "late", "later"]
    assert lab.events("dnn-added")[0].rates == {1: 5e5}
    started = len(lab.events("run-started"))
    assert lab.run() == 0, "the file of the run does not list them, and yet they are part of it"
    assert len(lab.events("run-started")) == started + 1
    assert lab.states() == wanted
    assert (lab.out / "config.yaml").read_text().count("late") >= 2


def test_a_dnn_that_was_added_outlives_the_death_of_the_run(lab: Any) -> None:
    """Rank 0 does not hear of it any more; the next start has it from the beginning."""
    lab.use(dnns=lab.dnns(hook="act"))
    lab.stop_at(2, rank=1)
    assert add(lab, "late") == 0
    assert add(lab, "later") == 0
    assert [path.name for path in sorted((lab.out / "submitted").iterdir())] == ["0000.yaml", "0001.yaml"]
    lab.kill_at(2)
    assert lab.run() == 0
    assert lab.states()["late"] == ("done", 1)
    assert lab.states()["later"] == ("done", 1)
    assert not lab.events("dnn-added"), "they were there when the start began"
    assert main(["stop", str(lab.out), "late"]) == 2, "like every DNN that is done"


def test_a_dnn_that_no_round_can_take_fails_alone(lab: Any, capsys: Any) -> None:
    lab.use(dnns=lab.dnns(hook="act"), dataplane={"ring_bytes": "3KiB", "block_samples": 8})

    def act() -> None:
        assert add(lab, "large", batch_size=50) == 0
        deadline_s = time.monotonic() + 30.0
        while not lab.events("dnn-failed"):
            assert time.monotonic() < deadline_s, "nobody fails"
            time.sleep(0.001)

    lab.at_steps([2], act)
    assert lab.run() == 3
    for _ in range(2):  # also at the next start
        states = lab.states()
        assert states.pop("large") == ("failed", 0)
        assert states == {name: ("done", epochs) for name, epochs in lab.epochs.items()}
        assert lab.run() == 3
    assert "does not fit in the ring" in capsys.readouterr().out
    assert [add(lab, name, batch_size=50) for name in ("huge", "vast")] == [0, 0]
    assert main(["stop", str(lab.out), "vast"]) == 0
    assert add(lab, "late") == 0
    assert lab.run() == 3, "what joined while nothing ran fails alone, too"
    wanted = {"large": ("failed", 0), "huge": ("failed", 0), "vast": ("stopped", 0), "late": ("done", 1)}
    assert lab.states() == {**{name: ("done", epochs) for name, epochs in lab.epochs.items()}, **wanted}
    assert "dnns.huge: a batch of 50 samples does not fit in the ring" in capsys.readouterr().out
    dnns = [*lab.dnns(hook="act"), {**lab.dnn("own", 1), "batch_size": 50}]
    rates = {name: {1: 5e5} for name in ("own", *lab.epochs)}
    ring = {"ring_bytes": "3KiB", "block_samples": 8}
    backend = {"name": "emulated", "precision": "float64", "collective": "mpi", "rates": rates}
    lab.use(dnns=dnns, dataplane=ring, backend=backend)
    with pytest.raises(InputError, match=r"dnns\.own: a batch of 50 samples does not fit in the ring"):
        lab.run()
    lab.use("independent", dnns=dnns, dataplane=ring, backend=backend)
    assert lab.run(retry_failed=True) == 0, "without rounds, the ring has room for what it is there for"


def test_a_dnn_whose_augment_does_not_work_fails_alone_at_the_next_start(lab: Any, capsys: Any) -> None:
    noisy = [{"in_process_toys:Noisy": {"spread": 2.0}}]
    lab.use(dnns=lab.dnns(hook="act"))
    lab.stop_at(2, rank=1)
    flip = [{"random_crop": {"height": 2, "width": 2}}]
    assert [add(lab, "q", augment=flip), add(lab, "good", augment=noisy)] == [0, 0]
    for _ in range(2):
        assert lab.run() == 3
        done = {name: ("done", epochs) for name, epochs in lab.epochs.items()}
        assert lab.states() == {**done, "q": ("failed", 0), "good": ("done", 1)}
    out = capsys.readouterr().out
    assert "submitted/0000.yaml: augment.0.random_crop: needs images" in out
    own = [{**lab.dnn("own", 1), "augment": flip}]
    rates = {name: {1: 5e5} for name in ("own", *lab.epochs)}
    backend = {"name": "emulated", "precision": "float64", "collective": "mpi", "rates": rates}
    lab.use(dnns=[*lab.dnns(hook="act"), *own], backend=backend)
    with pytest.raises(ConfigError, match="DNN own: augment"):
        lab.run()


def test_a_slot_that_trains_late_reads_what_the_run_began_with(lab: Any, hooks: dict[str, Any]) -> None:
    """Without rounds all trainers open the dataset at once: later it may be another one."""
    has_changed = False

    def open_it(_: int) -> None:
        assert not has_changed, "a trainer opens what nobody else has seen"

    hooks["open"] = open_it
    data = {"dataset": "in_process_toys:opened_by", "args": {"hook": "open"}}
    lab.use("independent", dnns=[lab.dnn("a", 4, hook="act")], data=data, num_slots=2)

    def act() -> None:
        nonlocal has_changed
        has_changed = True
        assert add(lab, "late") == 0
        deadline_s = time.monotonic() + 30.0
        while not lab.events("dnn-added"):
            assert time.monotonic() < deadline_s, "nobody joins"
            time.sleep(0.001)

    lab.at_steps([2], act)
    assert lab.run() == 0
    assert lab.states() == {"a": ("done", 4), "late": ("done", 1)}
    slots = [group.slots for event in lab.events("group-started") for group in event.plan.groups]
    assert sorted(slots) == [(0,), (1,)]


def test_a_number_of_a_file_that_was_removed_is_not_waited_for(lab: Any) -> None:
    lab.use(dnns=lab.dnns(hook="act"))
    lab.stop_at(2, rank=1)
    assert [add(lab, "n0"), add(lab, "n1")] == [0, 0]
    first, second = submission_files(RunDirectory(lab.out))
    first.unlink()
    assert add(lab, "n2") == 0
    assert [path.name for path in submission_files(RunDirectory(lab.out))] == [second.name, "0002.yaml"]
    assert main(["stop", str(lab.out), "n2"]) == 0, "it belongs to the run, which has not seen it yet"
    assert lab.run() == 0
    assert lab.states()["n1"] == ("done", 1)
    assert lab.states()["n2"] == ("stopped", 0)


def test_the_verb_refuses_what_cannot_join(lab: Any, capsys: Any) -> None:
    lab.use(dnns=lab.dnns(hook="act"))
    lab.stop_at(2, rank=1)
    capsys.readouterr()
    out, file = str(lab.out), Path(lab.out).parent / "more.yaml"
    for content, text in (
        ({"dnns": [lab.dnn("a", 1)], "defaults": {"batch_size": 16}}, "got 'a' for more than one DNN"),
        ({"dnns": [lab.dnn("A", 1)]}, "got 'A' beside 'a'"),
        ({"dnns": [{**lab.dnn("n", 1), "batch_size": 0}]}, ": dnns.0.batch_size: got 0"),
        ({"dnns": [lab.dnn("n", 1)], "seed": 3}, "seed: belongs to the run"),
        ({"dnns": [lab.dnn("n", 1)], "backend": {"name": "auto"}}, "backend: belongs to the run"),
        ({"defaults": {"batch_size": 16}}, "missing key 'dnns' or 'sweeps'"),
        ({"kind": "jobs", "jobs": []}, "allowed: a file with dnns or sweeps of DNNs"),
        ({"dnns": [lab.dnn("n", 1)]}, f"{file}: with its DNNs, the run's configuration: backend.rates: no"),
        ({"dnns": []}, "got no DNNs, allowed: at least one DNN that joins the run"),
        ({"dnns": [{**lab.dnn("A1", 1), "k_fold": 2}]}, "k_fold: got 2, allowed: none"),
        ({"sweeps": [tpe(lab)]}, "got search.sampler: tpe, allowed for DNNs that join a run: random"),
    ):
        defaults = {"batch_size": 16, "optimizer": {"name": "sgd", "learning_rate": 0.1}}
        known = {"'A'": ["A"], "A1": ["A1-fold1", "A1-fold2"], "tpe": ["s0", "s1"]}
        names = next((names for mark, names in known.items() if mark in str(content)), [])
        rates = {"rates": {name: {1: 1e6} for name in names}} if names else {}
        content = {"defaults": defaults, **({"backend": rates} if rates else {}), **content}
        file.write_text(yaml.safe_dump(content, sort_keys=False))
        assert main(["add", out, str(file)]) == 2, content
        shown = capsys.readouterr().err
        assert text in shown, shown
        assert "Traceback" not in shown
    assert not RunDirectory(lab.out).submissions.exists()
