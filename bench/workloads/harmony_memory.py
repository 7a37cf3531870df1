"""Eight jobs of four apps for two emulated machines that can hold a third of what they need."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

NUM_MACHINES = 2
BLOCKS = 32
"""Into which the samples of a job are cut."""

STEPS = 4
"""Steps of an epoch."""

EPOCHS = 6
BANDWIDTH = 150_000
"""Of a machine's link, bytes per second: few jobs at a time leave cores idle while they communicate."""

DISK_BYTES_PER_S = 6_000_000
"""Of a machine's emulated disk: as much slower than a real one as samples and computing are smaller."""

MEMORY_BYTES = 3_200_000
"""Of a machine: a third of what the jobs need."""

APPS = "hpcbal.paramserver.apps"


@dataclass(frozen=True, slots=True)
class MemoryJob:
    """A job.

    Attributes:
        app: what computes.
        num_samples: of an epoch.
        density: values of a sample.
        compute_s: machine-seconds of an epoch.
    """

    app: Literal["nmf", "lasso", "mlr", "lda"]
    num_samples: int
    density: int
    compute_s: float

    @property
    def name(self) -> str:
        return f"{self.app}-{self.num_samples}"

    def config(self) -> dict[str, Any]:
        """Its entry in the file of the run."""
        app, args, dataset, data = {
            "nmf": (
                "NMF",
                {"rank": 4},
                "generated_ratings",
                {"num_users": self.num_samples, "num_items": 600, "mean_ratings": self.density},
            ),
            "lasso": (
                "Lasso",
                {"l1": 1e-3},
                "generated_regression",
                {"num_features": self.num_samples, "num_observations": 1000, "num_nonzero": self.density},
            ),
            "mlr": (
                "MLR",
                {"learning_rate": 1.0},
                "generated_classes",
                {
                    "num_samples": self.num_samples,
                    "num_features": 600,
                    "num_classes": 3,
                    "num_nonzero": self.density,
                },
            ),
            "lda": (
                "LDA",
                {"num_topics": 5},
                "generated_documents",
                {"num_documents": self.num_samples, "num_words": 600, "mean_words": self.density},
            ),
        }[self.app]
        return {
            "name": self.name,
            "app": f"{APPS}:{app}",
            "args": args,
            "data": {"dataset": f"{APPS}:{dataset}", "args": data},
            "mini_batch": self.num_samples // STEPS,
            "seconds_per_sample": self.compute_s / self.num_samples,
            "stop": {"max_epochs": EPOCHS},
            "objective": {"every": EPOCHS},
            "blocks": {"data": BLOCKS, "parameters": NUM_MACHINES},
        }


JOBS = (
    MemoryJob("nmf", 1200, 150, 0.4),
    MemoryJob("nmf", 1600, 150, 4.0),
    MemoryJob("lasso", 800, 150, 3.6),
    MemoryJob("lasso", 1000, 150, 0.6),
    MemoryJob("mlr", 1280, 150, 0.5),
    MemoryJob("mlr", 1840, 150, 3.2),
    MemoryJob("lda", 1360, 100, 4.4),
    MemoryJob("lda", 1120, 100, 0.8),
)
"""Of each app, one that computes long for each byte and one that does not."""


def file_of(output: str, memory_bytes: int | None, alpha: float | str) -> dict[str, Any]:
    """The file of a run.

    Args:
        output: directory of the run.
        memory_bytes: of a machine; None: not limited.
        alpha: share of data blocks on disk, or `auto`.
    """
    names = [job.name for job in JOBS]
    return {
        "kind": "jobs",
        "name": "harmony-memory",
        "output": {"dir": output},
        "jobs": [job.config() for job in JOBS],
        "schedule": {"paradigm": "naive", "groups": [{"jobs": names, "machines": NUM_MACHINES}]},
        "memory_per_node": memory_bytes,
        "spill": {"alpha": alpha},
        "checkpoint": {"interval_s": 3600.0},
        "machines": [{"count": NUM_MACHINES, "bandwidth": BANDWIDTH, "disk": DISK_BYTES_PER_S}],
    }
