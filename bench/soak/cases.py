"""The ensembles that soak_kills.py disturbs: small, and with the same weights in every undisturbed run."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from hpcbal.events.ensemble import WITHOUT_ROUNDS

NUM_SLOTS = 3
NUM_RANKS = NUM_SLOTS + 2
"""One scheduler, one preprocessor, three trainers."""

# 160 samples: 128 train in 8 steps of 16, a power of two, see workloads/exact.py.
_BASE: Mapping[str, Any] = {
    "name": "soak",
    "seed": 5,
    "data": {"dataset": "workloads.exact:points", "validation_fraction": 0.2},
    "schedule": {"paradigm": "global", "delta": "15%"},
    "slots": {"per_node": NUM_SLOTS},
    "dataplane": {"ring_bytes": "8KiB", "block_samples": 8},
    "output": {"dir": "out"},
}

_OPTIMIZER = {"name": "sgd", "learning_rate": 0.05, "momentum": 0.9}
_WORKERS = [{"speed": 1.0}, {"speed": 0.5, "launch_s": 0.002}, {"speed": 0.8}]


RATES = {"slots_per_node": NUM_SLOTS, "samples_per_s": {"1": 400.0, "2": 780.0, "3": 1100.0}}
PROFILE: Mapping[str, Any] = {"format": 1, "entries": {"a": {"dnn": "a", **RATES}}}
"""The rates.json of every run; a case that names it measures nothing."""


def _based_on(schedule: Mapping[str, Any]) -> Mapping[str, Any]:
    """The base of a case; without rounds there is no ring."""
    if schedule.get("paradigm") not in WITHOUT_ROUNDS:
        return _BASE
    return {**_BASE, "dataplane": {"block_samples": 8}}


def _dnn(name: str, epochs: int, model: str) -> dict[str, Any]:
    stop = {"max_epochs": epochs}
    return {"name": name, "model": model, "batch_size": 16, "optimizer": _OPTIMIZER, "stop": stop}


def _three(model: str = "hpcbal.models:softmax", **more: Any) -> dict[str, Any]:
    """Three DNNs of unlike speed, so that they share rounds and slots in several ways."""
    names = {"a": 5, "b": 3, "c": 4}
    return {
        **_based_on(more.get("schedule", {})),
        "dnns": [_dnn(name, epochs, model) for name, epochs in names.items()],
        "backend": {
            "name": "emulated",
            "precision": "float64",
            "rates": {"a": {1: 400, 2: 780, 3: 1100}, "b": {1: 800, 2: 1500}, "c": {1: 820, 2: 1550}},
        },
        **more,
    }


def _paradigm(name: str) -> dict[str, Any]:
    delta = {"delta": "15%"} if name in ("global", "local") else {}
    return _three(schedule={"paradigm": name, **delta})


def _one(model: str = "hpcbal.models:softmax", **more: Any) -> dict[str, Any]:
    """One DNN on three unlike workers."""
    return {
        **_BASE,
        "dnns": [_dnn("a", 8, model)],
        "backend": {
            "name": "emulated",
            "precision": "float64",
            "rates": {"a": {1: 400}},
            "workers": _WORKERS,
        },
        **more,
    }


def _measured(policy: str) -> dict[str, Any]:
    """A policy that follows measured times: only exact sums are the same in every run."""
    return _one("workloads.exact:exact", balance={"policy": policy})


def _partitioned(partition: str, gap: float | None) -> dict[str, Any]:
    data = {**_BASE["data"], "access": "partitioned", "partition": partition, "max_traversal_gap": gap}
    return _one(data=data, balance={"policy": "fixed", "shares": [4, 1, 2]})


def _trained(model: str, *names: str, **schedule: Any) -> dict[str, Any]:
    """Models whose results depend on all of their state, whatever speeds are measured."""
    plateau = {"name": "plateau", "factor": 0.5, "patience": 2}
    more = {
        "optimizer": {"name": "adam", "learning_rate": 0.02, "schedule": plateau},
        "class_weights": "balanced",
        "accumulate": 2,
        "ema": 0.9,
    }
    return {
        **_based_on(schedule),
        "dnns": [{**_dnn(name, 20, model), **more} for name in names],
        "backend": {"collective": "mpi"},
        "schedule": schedule,
        "checkpoint": {"interval_s": 0.0},
    }


KERAS, TORCH = "workloads.random_layers:dropping", "workloads.random_modules:dropping"

CASES: Mapping[str, Callable[[], dict[str, Any]]] = {
    "global": lambda: _paradigm("global"),
    "fitted": lambda: _measured("fitted"),
    "partitioned": lambda: _partitioned("random", None),
    "local": lambda: _paradigm("local"),
    "lb-bsp-gpu": lambda: _measured("lb-bsp-gpu"),
    "migrating": lambda: _partitioned("by_class", 1.0),
    "homogeneous": lambda: _paradigm("homogeneous"),
    "lb-bsp-cpu": lambda: _measured("lb-bsp-cpu"),
    "fixed": lambda: _one(balance={"policy": "fixed", "shares": [2, 1, 1]}),
    "independent": lambda: _paradigm("independent"),
    "elastic": lambda: _three("workloads.exact:exact", schedule={"paradigm": "elastic"}),
    "tensorflow": lambda: _trained(KERAS, "a", "b", "c", "d", paradigm="independent"),
    "torch": lambda: _trained(TORCH, "a", "b", "c", "d", paradigm="independent"),
    "tensorflow-group": lambda: _trained(KERAS, "a", paradigm="global", profiling={"rates": "rates.json"}),
    "torch-group": lambda: _trained(TORCH, "a", paradigm="global", profiling={"rates": "rates.json"}),
}
"""Configurations by name, in the order in which runs take turns."""

OF_SPEEDS: Mapping[str, tuple[str, ...]] = {"elastic": ("num_slots",)}
"""Columns of metrics.jsonl that follow the speeds of a run, by case."""
