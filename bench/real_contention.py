"""Real TensorFlow workers on unequal cores under a load that comes and goes: every way to share steps out.

Three workers as in record_contention.py: one alone on the first core, two that share the second, and as many
burners, whose bursts come and go by the same schedule for every way. Each way is an `hpcbal run` of its own,
since a predictor is chosen for a whole run. What counts is how many steps it gets done in the same stretch of
that schedule, fits and validation included. Other than in a replay, speeds here hang on a worker's own batch,
on the other workers, and on the fits that run beside.
"""

from __future__ import annotations

import contextlib
import json
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from burn_cores import Load, burning
from real_shares import NUM_VALIDATION, rates_of
from unequal_workers import start

from hpcbal.policies.batching.speed import PREDICTORS
from hpcbal.speed_models import FITTERS
from hpcbal.telemetry import read_ledger

BATCH_SIZE, CHANNELS, STEPS = 320, 32, 10  # steps of 0.1 s where nobody else computes; per pass
FIRST_FIT, REFIT_EVERY = 100, 200  # steps
BEGIN_S, END_S = 60.0, 120.0  # of what counts, since the burners began: fits are in use by then
LAST_PASS_S = 8.0  # the pass that is under way when it is over
STOP_S = 30.0  # a clean stop takes no longer
BURSTS = Load(on_s=(1.5, 6.0), off_s=(1.5, 6.0), mebibytes=256)
BASE = "even"
Figures = dict[str, float]
WAYS = (BASE, "fixed", *sorted(PREDICTORS), *sorted(FITTERS), "fitted")
"""Policies; names of predictors stand for `lb-bsp-cpu` with them."""


@dataclass(frozen=True)
class Outcome:
    """What one way came to.

    Attributes:
        step_s: mean seconds of a step, with everything between two steps.
        fitted_share: of the passes, the part in which a fitted model answered.
    """

    step_s: float
    fitted_share: float


def balance_of(way: str) -> dict[str, Any]:
    """The section `balance` of the configuration."""
    if way in PREDICTORS:
        return {"policy": "lb-bsp-cpu", "predictor": way}
    if way in FITTERS:
        fits = {"first_fit": FIRST_FIT, "refit_every": REFIT_EVERY}
        return {"policy": "lb-bsp-cpu", "predictor": way, **fits}
    return {"policy": way, "shares": [2, 1, 1]} if way == "fixed" else {"policy": way}


def config_of(way: str, folder: Path) -> dict[str, Any]:
    """The configuration, as YAML has it."""
    num_samples = STEPS * BATCH_SIZE + NUM_VALIDATION
    dnn = {
        "name": "net",
        "model": "lbbsp_data:convolutions",
        "args": {"channels": CHANNELS},
        "batch_size": BATCH_SIZE,
        "optimizer": {"name": "sgd", "learning_rate": 0.01},
        "stop": {"max_epochs": 1_000_000},  # it is stopped from without
    }
    return {
        "name": "real-contention",
        "data": {
            "dataset": "lbbsp_data:images",
            "args": {"num_samples": num_samples},
            "validation_fraction": NUM_VALIDATION / num_samples,
        },
        "dnns": [dnn],
        "balance": balance_of(way),
        "schedule": {"profiling": {"rates": str(folder / "rates.json")}},
        "slots": {"per_node": 3},
        "output": {"dir": str(folder / "out")},
    }


def measure(way: str, cores: tuple[int, int], seed: int) -> Outcome:
    """Start a run under load, and stop it when what counts is over.

    Args:
        way: of WAYS.
        cores: one for the first worker, and one for the other two.
        seed: of the burners' schedule.
    """
    pinned = (cores[0], cores[1], cores[1])
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "rates.json").write_text(json.dumps(rates_of(["net"], len(pinned))))
        (folder / "run.yaml").write_text(yaml.safe_dump(config_of(way, folder), sort_keys=False))
        with (folder / "log").open("wb") as log, burning(pinned, BURSTS, seed):
            began_s = time.time()
            process = start(["run", str(folder / "run.yaml")], pinned, log=log)
            try:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(END_S + LAST_PASS_S)
                process.send_signal(signal.SIGUSR2)  # a clean stop; nothing if it has ended
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(STOP_S)
            finally:
                process.terminate()  # takes the ranks along
                process.wait()
        ledger = read_ledger(folder / "out" / "ledger.jsonl") if (folder / "out").exists() else []
        if not ledger or ledger[-1].get("outcome") != "suspended":
            raise SystemExit(f"{(folder / 'log').read_text()}\nreal_contention: the run of {way} failed")
    return outcome_of(ledger, began_s)


def outcome_of(ledger: Sequence[Mapping[str, Any]], began_s: float) -> Outcome:
    """What the ledger of a run tells.

    Within a pass, steps are taken to be equally long.

    Args:
        began_s: when the burners began, Unix time.

    Raises: SystemExit: passes do not cover the stretch that counts.
    """
    done = [line for line in ledger if line["event"] == "epoch-done"]
    ends_s = np.array([datetime.fromisoformat(line["time"]).timestamp() - began_s for line in done])
    if len(done) < 2 or ends_s[0] > BEGIN_S or ends_s[-1] < END_S:
        raise SystemExit(
            f"real_contention: {len(done)} passes do not cover the seconds from {BEGIN_S:g} to {END_S:g}"
        )
    begin, end = np.interp([BEGIN_S, END_S], ends_s, STEPS * np.arange(len(done)))
    answered = [
        bool(line.get("balance", {}).get("fitted"))
        for line, end_s in zip(done, ends_s, strict=True)
        if BEGIN_S <= end_s <= END_S
    ]
    return Outcome((END_S - BEGIN_S) / float(end - begin), float(np.mean(answered)) if answered else 0.0)


def table(
    ways: Sequence[str], cores: tuple[int, int], seeds: Sequence[int], keep: Callable[[Figures], None]
) -> None:
    """Print the mean step of each way over that of `even` under the same bursts.

    With each schedule `even` comes first and last; what lies between the two is noise.

    Args:
        ways: of WAYS, without `even`.
        cores: as `measure` takes them.
        seeds: of the schedules; every second one goes through the ways backwards.
        keep: takes the figures that are known so far.
    """
    outcomes: dict[str, list[Outcome]] = {}
    print("contended       ms  time/even  fitted model in use")
    for turn, seed in enumerate(seeds):
        base: list[float] = []
        for way in (BASE, *ways[:: -1 if turn % 2 else 1], BASE):
            outcome = measure(way, cores, seed)
            if way == BASE:
                base.append(outcome.step_s)
            outcomes.setdefault(way, []).append(outcome)
            used = f"{outcome.fitted_share:20.0%}" if way in FITTERS else ""
            print(
                f"{way:<11} {1e3 * outcome.step_s:6.1f}  {outcome.step_s / base[0]:9.3f} {used}", flush=True
            )
            keep(figures_of(outcomes))


def figures_of(outcomes: Mapping[str, Sequence[Outcome]]) -> Figures:
    """Each way's mean step over the mean one of `even`, and the longest over the shortest of the latter."""
    base = np.array([one.step_s for one in outcomes[BASE]])
    results = {"contended_even_spread": float(base.max() / base.min())}
    for way, mine in outcomes.items():
        step_s = float(np.mean([one.step_s for one in mine]))
        results[f"contended_{way}_time"] = step_s / float(base.mean())
        if way in FITTERS:
            results[f"contended_{way}_fitted_share"] = float(np.mean([one.fitted_share for one in mine]))
    return results
