"""ASHA as others do it, on given curves: Algorithm 2 of the paper, and Syne Tune's promotion variant."""

from __future__ import annotations

import importlib
from collections.abc import Sequence

Curves = Sequence[Sequence[float]]
"""The best value so far after each epoch, by configuration; more is better."""

Jobs = list[tuple[int, int]]
"""Configuration, and epochs that it has then been trained for."""


def rungs_of(eta: int, first: int, max_epochs: int) -> list[int]:
    """Return the epochs of the rungs, without the end."""
    found = []
    while first < max_epochs:
        found.append(first)
        first *= eta
    return found


def paper(curves: Curves, eta: int, first: int) -> Jobs:
    """Return the jobs of [ASHA] Alg. 2 with one worker, for configurations that come in this order."""
    max_epochs = len(curves[0])
    ends = [*rungs_of(eta, first, max_epochs), max_epochs]
    results: list[dict[int, float]] = [{} for _ in ends]
    promoted: list[set[int]] = [set() for _ in ends]
    new = iter(range(len(curves)))
    jobs: Jobs = []
    while True:
        job = None
        for rung in reversed(range(len(ends) - 1)):
            best = sorted(results[rung], key=lambda i: (-results[rung][i], i))
            able = [i for i in best[: len(best) // eta] if i not in promoted[rung]]
            if able:
                promoted[rung].add(able[0])
                job = able[0], rung + 1
                break
        if job is None:
            fresh = next(new, None)
            if fresh is None:
                return jobs
            job = fresh, 0
        index, rung = job
        results[rung][index] = curves[index][ends[rung] - 1]
        jobs.append((index, ends[rung]))


def side_by_side(curves: Curves, eta: int, first: int) -> list[set[int]]:
    """Return who is promoted from each rung by the paper's rule, if all reach it before any is promoted."""
    there, found = set(range(len(curves))), []
    for rung in rungs_of(eta, first, len(curves[0])):
        ranked = sorted(there, key=lambda i: (-curves[i][rung - 1], i))
        there = set(ranked[: len(ranked) // eta])
        found.append(there)
    return found


def syne_tune(curves: Curves, eta: int, first: int) -> list[set[int]] | None:
    """Return the same of Syne Tune's `PromotionRungSystem`, up to version 0.10; None without it."""
    try:
        module = importlib.import_module("syne_tune.optimizer.schedulers.hyperband_promotion")
    except ImportError:
        return None
    max_epochs = len(curves[0])
    rungs = rungs_of(eta, first, max_epochs)
    system = module.PromotionRungSystem(rungs, [1 / eta] * len(rungs), "value", "max", "epoch", max_epochs)
    running = {str(i): rungs[0] for i in range(len(curves))}
    for name in running:
        system.on_task_add(name, skip_rungs=0)
    found: list[set[int]] = []
    while running and len(found) < len(rungs):
        for name, milestone in running.items():
            value = curves[int(name)][milestone - 1]
            system.on_task_report(name, {"value": value, "epoch": milestone}, skip_rungs=0)
            system.on_task_remove(name)
        running = {}
        while task := system.on_task_schedule("new"):
            running[task["trial_id"]] = task["milestone"]
            more = {"milestone": task["milestone"], "resume_from": task["resume_from"]}
            system.on_task_add(task["trial_id"], skip_rungs=0, new_config=False, **more)
        found.append({int(name) for name in running})
    return found
