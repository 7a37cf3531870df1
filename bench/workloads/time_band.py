"""The random runs of bench_time_band.py: small ensembles, and jobs on parameter servers."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

NUM_TRAIN, NUM_VALIDATION = 480, 48
FEATURES = 8
PARADIGMS = ("auto", "global", "local", "elastic", "independent", "homogeneous")
CONSISTENCIES: tuple[Any, ...] = ("sync", {"stale": 2}, "async")


def ensemble(rng: random.Random, output: Path) -> dict[str, Any]:
    """Draw an ensemble of 2 to 8 DNNs on 2 to 4 emulated slots, with rates of 1 to 4 and 1 to 6 epochs.

    More slots keep 75 to 100 % of their rate.
    """
    slots = rng.randint(2, 4)
    dnns, rates = [], {}
    for index in range(rng.randint(2, 8)):
        name, kept = f"d{index}", rng.uniform(0.75, 1.0)
        rate = 400.0 * 4.0 ** rng.random()
        rates[name] = {count: rate * count * kept ** (count - 1) for count in range(1, slots + 1)}
        dnns.append(
            {
                "name": name,
                "model": "hpcbal.models:softmax",
                "batch_size": rng.choice((16, 32, 48)),
                "optimizer": {"name": "sgd", "learning_rate": 0.001},
                "stop": {"max_epochs": rng.randint(1, 6)},
            }
        )
    paradigm = rng.choice(PARADIGMS)
    schedule = {"paradigm": paradigm} | ({"delta": "100%"} if paradigm in ("global", "local") else {})
    return {
        "name": "band",
        "data": {
            "dataset": "workloads.fleet_real:points",
            "args": {"num_samples": NUM_TRAIN + NUM_VALIDATION, "num_features": FEATURES},
            "validation_fraction": NUM_VALIDATION / (NUM_TRAIN + NUM_VALIDATION),
        },
        "dnns": dnns,
        "backend": {"name": "emulated", "rates": rates},
        "slots": {"per_node": slots, "preprocessors_per_node": 1},
        "schedule": schedule,
        "output": {"dir": str(output)},
    }


def job(rng: random.Random, output: Path) -> dict[str, Any]:
    """Draw a factorisation of 400 to 1,200 users on 2 to 4 emulated executors, unlike in half of the jobs."""
    executors = rng.randint(2, 4)
    machine = {"seconds_per_sample": 1e-3, "bandwidth": f"{rng.uniform(0.5, 4.0):.2f}MB/s"}
    speeds = [rng.choice((0.5, 1.0, 2.0)) for _ in range(executors)] if rng.random() < 0.5 else [1.0]
    counts = [1] * executors if len(speeds) > 1 else [executors]
    return {
        "kind": "paramserver",
        "name": "band",
        "app": "hpcbal.paramserver.apps:NMF",
        "args": {"rank": rng.choice((4, 8))},
        "data": {
            "dataset": "hpcbal.paramserver.apps:generated_ratings",
            "args": {"num_users": rng.randint(400, 1200), "num_items": rng.randint(200, 800)},
        },
        "mini_batch": rng.choice((100, 200)),
        "consistency": rng.choice(CONSISTENCIES),
        "tune": {"enabled": rng.random() < 0.5},
        "stop": {"max_epochs": rng.randint(3, 6)},
        "machines": [
            {"count": count, "speed": speed, **machine} for count, speed in zip(counts, speeds, strict=True)
        ],
        "slots": {"per_node": executors},
        "output": {"dir": str(output)},
    }


def stretched(config: dict[str, Any], factor: float) -> dict[str, Any]:
    """Return the same run, `factor` times as long: computing and links are slower by that factor."""
    if config.get("kind") == "paramserver":
        machines = [
            each
            | {
                "seconds_per_sample": each["seconds_per_sample"] * factor,
                "bandwidth": f"{float(each['bandwidth'].removesuffix('MB/s')) / factor:.4f}MB/s",
            }
            for each in config["machines"]
        ]
        return config | {"machines": machines}
    rates = {
        name: {count: rate / factor for count, rate in by_count.items()}
        for name, by_count in config["backend"]["rates"].items()
    }
    return config | {"backend": config["backend"] | {"rates": rates}}


def naive_s(config: dict[str, Any]) -> float:
    """Return epochs times samples over the rate, shared out evenly over all slots: the usual guess.

    Of jobs on parameter servers, links are left out.
    """
    slots = config["slots"]["per_node"]
    if config.get("kind") == "paramserver":
        samples = config["data"]["args"]["num_users"] * config["stop"]["max_epochs"]
        machines = config["machines"]
        speed = sum(each["count"] * each["speed"] for each in machines)
        return float(samples * machines[0]["seconds_per_sample"] / speed)
    rates = config["backend"]["rates"]
    work_s = sum(dnn["stop"]["max_epochs"] * NUM_TRAIN / rates[dnn["name"]][1] for dnn in config["dnns"])
    return float(work_s / slots)
