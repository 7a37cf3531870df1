"""Sixteen jobs of four apps for eight emulated machines: what they compute, send and keep in memory."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

NUM_MACHINES = 8
BANDWIDTH = 400_000
MEMORY_BYTES = 2_400_000
STEPS = 4
"""Steps of an epoch."""

BLOCKS = 16
"""Into which samples and parameters are cut. First pushes and objectives take messages for each block of
samples; few blocks keep them short."""

APPS = "hpcbal.paramserver.apps"


@dataclass(frozen=True, slots=True)
class RealJob:
    """A job.

    Attributes:
        app: what computes.
        size: of the model: items of NMF, observations of Lasso, classes of MLR, topics of LDA.
        num_samples: of an epoch.
        density: known entries of a sample.
        compute_s: machine-seconds of an iteration.
        epochs: until its end.
    """

    app: Literal["nmf", "lasso", "mlr", "lda"]
    size: int
    num_samples: int
    density: int
    compute_s: float
    epochs: int

    @property
    def name(self) -> str:
        return f"{self.app}-{self.size}"

    def config(self) -> dict[str, Any]:
        """Its entry in the file of the run."""
        app, args, dataset, data = {
            "nmf": (
                "NMF",
                {"rank": 16, "access": "dense"},
                "generated_ratings",
                {"num_users": self.num_samples, "num_items": self.size, "mean_ratings": self.density},
            ),
            "lasso": (
                "Lasso",
                {"l1": 1e-4},
                "generated_regression",
                {
                    "num_features": self.num_samples,
                    "num_observations": self.size,
                    "num_nonzero": self.density,
                },
            ),
            "mlr": (
                "MLR",
                {"learning_rate": 1.0},
                "generated_classes",
                {
                    "num_samples": self.num_samples,
                    "num_features": 2_000,
                    "num_classes": self.size,
                    "num_nonzero": self.density,
                },
            ),
            "lda": (
                "LDA",
                {"num_topics": self.size},
                "generated_documents",
                {"num_documents": self.num_samples, "num_words": 1_000, "mean_words": self.density},
            ),
        }[self.app]
        return {
            "name": self.name,
            "app": f"{APPS}:{app}",
            "args": args,
            "data": {"dataset": f"{APPS}:{dataset}", "args": data},
            "mini_batch": self.num_samples // STEPS,
            "seconds_per_sample": self.compute_s * STEPS / self.num_samples,
            "stop": {"max_epochs": self.epochs},
            "objective": {"every": self.epochs},
            "blocks": {"data": BLOCKS, "parameters": BLOCKS},
        }


JOBS = (
    RealJob("nmf", 1200, 1600, 42, 0.20, 11),
    RealJob("lasso", 2500, 1600, 25, 1.10, 13),
    RealJob("mlr", 11, 1600, 40, 0.16, 12),
    RealJob("lda", 3, 1600, 25, 1.30, 11),
    RealJob("lasso", 20000, 1600, 48, 0.14, 13),
    RealJob("nmf", 150, 1600, 12, 0.90, 14),
    RealJob("lda", 24, 1600, 60, 0.24, 11),
    RealJob("mlr", 2, 1600, 20, 1.20, 10),
    RealJob("nmf", 1400, 1600, 36, 0.22, 10),
    RealJob("mlr", 12, 1600, 40, 0.26, 11),
    RealJob("lasso", 24000, 1600, 40, 0.20, 10),
    RealJob("lda", 30, 1600, 50, 0.16, 12),
    RealJob("lasso", 4000, 1600, 25, 0.80, 14),
    RealJob("lda", 5, 1600, 25, 1.00, 12),
    RealJob("nmf", 250, 1600, 12, 1.40, 10),
    RealJob("mlr", 4, 1600, 20, 1.10, 12),
)
"""Eight jobs that mostly talk, which are short but gain nothing from more machines, and eight that mostly
compute; the last four of these come at the end, where they can use machines that are left."""


def file_of(output: str, paradigm: str, seed: int = 0) -> dict[str, Any]:
    """The file of a run.

    Args:
        output: directory of the run.
        paradigm: how jobs share machines.
        seed: of the random groups of `naive`.
    """
    return {
        "kind": "jobs",
        "name": f"harmony-real-{paradigm}",
        "seed": seed,
        "output": {"dir": output},
        "jobs": [job.config() for job in JOBS],
        "schedule": {"paradigm": paradigm},
        "memory_per_node": MEMORY_BYTES,
        "spill": {"alpha": 0.0},
        "checkpoint": {"interval_s": 3600.0},
        "machines": [{"count": NUM_MACHINES, "bandwidth": BANDWIDTH}],
    }
