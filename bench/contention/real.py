"""Real TensorFlow workers on unequal cores under a load that comes and goes, with every way to split steps.

Three workers as in record_contention.py: one alone on the first core, two that share the second, and as many
burners. Their bursts come and go by the same schedule for every way. Each way is an `hpcbal run` of its own,
because a predictor is chosen for a whole run. The result is the number of steps that it completes in the same
stretch of that schedule, validation included. Unlike in a replay, speeds depend on a worker's own batch and
on the other workers.

Fitted predictors use a model from the first step on, like a run that continues with a model of an earlier
one. The model is fitted to the recording beforehand, because on two busy cores a fit, which has the lowest
priority, takes longer than the measured stretch.
"""

from __future__ import annotations

import contextlib
import json
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np
import yaml
from contention.burn_cores import Load, burning
from contention.recording import load_recording
from contention.replay import observe
from contention.shares import NUM_VALIDATION, rates_of
from contention.unequal_workers import start

from hpcbal.events.ensemble import EpochDone
from hpcbal.policies.batching.speed import PREDICTORS, SpeedPredictor
from hpcbal.runtime.balance.speed_learning import KeptModel
from hpcbal.speed_models import FITTERS, SpeedLearner
from hpcbal.telemetry import read_ledger
from hpcbal.telemetry.ledger import Entry, RunFinishedLine, RunStartedLine, lines_of

BATCH_SIZE, CHANNELS, STEPS = 320, 32, 10  # per pass; steps take 0.1 s without other load
BEGIN_S, END_S = 30.0, 90.0  # of the measured stretch, since the burners began; all train by then
LAST_PASS_S = 8.0  # the pass in which it ends
STOP_S = 30.0  # a clean stop takes no longer
BURSTS = Load(on_s=(1.5, 6.0), off_s=(1.5, 6.0), mebibytes=256)
RECORDING = Path(__file__).resolve().parents[2] / "tests" / "data" / "contention.npz"
BASE = "even"
Figures = dict[str, float]
WAYS = (BASE, "fixed", *sorted(PREDICTORS), *sorted(FITTERS), "fitted")
"""Policies; the name of a predictor means `lb-bsp-cpu` with it."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of one way.

    Attributes:
        step_s: mean seconds of a step, including everything between two steps.
        fitted_share: share of the passes in which a fitted model predicted.
    """

    step_s: float
    fitted_share: float


Schedule = dict[str, list[Outcome]]
"""Results by way under one schedule of bursts."""


def balance_of(way: str) -> dict[str, Any]:
    """The section `balance` of the configuration."""
    if way in PREDICTORS or way in FITTERS:
        return {"policy": "lb-bsp-cpu", "predictor": way}
    return {"policy": way, "shares": [2, 1, 1]} if way == "fixed" else {"policy": way}


def fitted_model(name: str) -> SpeedPredictor:
    """The model of a predictor, fitted to the recording."""
    recording = load_recording(RECORDING)
    traces, sizes = recording.traces(), recording.num_samples[:, 0].tolist()
    learner = SpeedLearner(name, len(sizes), first_fit=1)
    for k in range(traces.speeds.shape[1] - 1):
        learner.record(observe(traces, sizes, k))
    job = learner.job()
    assert job is not None
    return job()


def config_of(way: str, folder: Path, max_epochs: int) -> dict[str, Any]:
    """The configuration of the run."""
    num_samples = STEPS * BATCH_SIZE + NUM_VALIDATION
    dnn = {
        "name": "net",
        "model": "workloads.lbbsp:convolutions",
        "args": {"channels": CHANNELS},
        "batch_size": BATCH_SIZE,
        "optimizer": {"name": "sgd", "learning_rate": 0.01},
        "stop": {"max_epochs": max_epochs},
    }
    return {
        "name": "real-contention",
        "data": {
            "dataset": "workloads.lbbsp:images",
            "args": {"num_samples": num_samples},
            "validation_fraction": NUM_VALIDATION / num_samples,
        },
        "dnns": [dnn],
        "balance": balance_of(way),
        "schedule": {"profiling": {"rates": str(folder / "rates.json")}},
        "slots": {"per_node": 3},
        "output": {"dir": str(folder / "out")},
    }


def measure(way: str, cores: tuple[int, int], seed: int, model: SpeedPredictor | None) -> Outcome:
    """Start a run under load, and stop it after the measured stretch.

    Args:
        way: of WAYS.
        cores: one for the first worker, and one for the other two.
        seed: of the burners' schedule.
        model: of a fitted predictor, as an earlier run leaves it.
    """
    pinned = (cores[0], cores[1], cores[1])
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "rates.json").write_text(json.dumps(rates_of(["net"], len(pinned))))
        with (folder / "log").open("wb") as log:
            _start(way, folder, pinned, log, max_epochs=1).wait()
            ledger = _ledger(folder, "done")
            if model is not None:
                (node,) = lines_of(ledger, RunStartedLine)[0].nodes
                workers = [f"{node.host} {gpu}" for gpu in range(len(pinned))]
                KeptModel(folder / "out" / "dnns" / "net", way, workers).write(model)
            with burning(pinned, BURSTS, seed):
                began_s = time.time()
                process = _start(way, folder, pinned, log, max_epochs=1_000_000)
                try:
                    with contextlib.suppress(subprocess.TimeoutExpired):
                        process.wait(END_S + LAST_PASS_S)
                    process.send_signal(signal.SIGUSR2)  # a clean stop; nothing if it has ended
                    with contextlib.suppress(subprocess.TimeoutExpired):
                        process.wait(STOP_S)
                finally:
                    process.terminate()  # takes the ranks along
                    process.wait()
        return outcome_of(_ledger(folder, "suspended"), began_s)


def _start(
    way: str, folder: Path, pinned: Sequence[int], log: IO[bytes], max_epochs: int
) -> subprocess.Popen[bytes]:
    (folder / "run.yaml").write_text(yaml.safe_dump(config_of(way, folder, max_epochs), sort_keys=False))
    return start(["run", str(folder / "run.yaml")], pinned, log=log)


def _ledger(folder: Path, outcome: str) -> Sequence[Entry]:
    """The ledger of a run with this outcome.

    Raises: SystemExit: the run has another outcome.
    """
    ledger = read_ledger(folder / "out" / "ledger.jsonl") if (folder / "out").exists() else []
    last = ledger[-1].line if ledger else None
    if not isinstance(last, RunFinishedLine) or last.outcome != outcome:
        raise SystemExit(f"{(folder / 'log').read_text()}\nreal_contention: the run is not {outcome}")
    return ledger


def outcome_of(ledger: Sequence[Entry], began_s: float) -> Outcome:
    """The result of a run, from its ledger.

    Steps of the same pass count as equally long.

    Args:
        began_s: when the burners began, Unix time.

    Raises: SystemExit: passes do not cover the measured stretch.
    """
    passes = [
        (entry.unix_s - began_s, entry.line.facts.balance)
        for entry in ledger
        if isinstance(entry.line, EpochDone) and entry.unix_s >= began_s  # of this start
    ]
    done = [balance for _, balance in passes]
    ends_s = np.array([end_s for end_s, _ in passes])
    if len(done) < 2 or ends_s[0] > BEGIN_S or ends_s[-1] < END_S:
        raise SystemExit(
            f"real contention: {len(done)} passes do not cover the seconds from {BEGIN_S:g} to {END_S:g}"
        )
    begin, end = np.interp([BEGIN_S, END_S], ends_s, STEPS * np.arange(len(done)))
    answered = [
        balance is not None and bool(balance.fitted)
        for balance, end_s in zip(done, ends_s, strict=True)
        if BEGIN_S <= end_s <= END_S
    ]
    return Outcome((END_S - BEGIN_S) / float(end - begin), float(np.mean(answered)) if answered else 0.0)


def table(
    ways: Sequence[str], cores: tuple[int, int], seeds: Sequence[int], keep: Callable[[Figures], None]
) -> Figures:
    """Print the mean step of each way over that of `even` under the same bursts; returns the figures.

    With each schedule `even` comes first and last; the difference between the two is noise.

    Args:
        ways: of WAYS, without `even`.
        cores: as for `measure`.
        seeds: of the schedules; every second one goes through the ways backwards.
        keep: receives the figures known so far.
    """
    models = {way: fitted_model(way) for way in ways if way in FITTERS}
    schedules: list[Schedule] = []
    print("contended        ms  fitted model in use")
    for turn, seed in enumerate(seeds):
        schedules.append({})
        for way in (BASE, *ways[:: -1 if turn % 2 else 1], BASE):
            outcome = measure(way, cores, seed, models.get(way))
            schedules[-1].setdefault(way, []).append(outcome)
            used = f"{outcome.fitted_share:20.0%}" if way in FITTERS else ""
            print(f"{way:<11} {1e3 * outcome.step_s:7.1f} {used}", flush=True)
            keep(figures_of(schedules))
    figures = figures_of(schedules)
    print("contended   time/even")
    for way in (BASE, *ways):
        print(f"{way:<11} {figures[f'contended_{way}_time']:9.3f}")
    print(f"contended_even_spread {figures['contended_even_spread']:.3f}")
    return figures


def figures_of(schedules: Sequence[Schedule]) -> Figures:
    """Each way's mean step over that of `even` in the same schedule, and the mean of these ratios.

    `contended_even_spread` is the largest ratio of two mean steps of `even` in the same schedule.

    Args:
        schedules: those begun; the newest may have some of the ways only.
    """
    by_way: dict[str, list[float]] = {}
    fitted: dict[str, list[float]] = {}
    spreads = []
    for outcomes in schedules:
        base = [one.step_s for one in outcomes[BASE]]
        spreads.append(max(base) / min(base))
        for way, mine in outcomes.items():
            by_way.setdefault(way, []).append(float(np.mean([one.step_s for one in mine]) / np.mean(base)))
            fitted.setdefault(way, []).append(float(np.mean([one.fitted_share for one in mine])))
    figures = {f"contended_{way}_time": float(np.mean(ratios)) for way, ratios in by_way.items()}
    figures |= {
        f"contended_{way}_fitted_share": float(np.mean(fitted[way])) for way in fitted if way in FITTERS
    }
    return figures | {"contended_even_spread": max(spreads)}
