"""Strict stand-ins for the parts of MLflow and Weights & Biases that the export calls.

They refuse what the real libraries refuse (mlflow-skinny 3.17 and wandb 0.31, tried by hand), and record the
rest: names and lengths, sizes of batches, numbers that are no numbers, runs that are not ended.
"""

from __future__ import annotations

import re
from pathlib import Path
from types import ModuleType
from typing import Any, ClassVar, NamedTuple
from urllib.parse import urlparse

_NAME = re.compile(r"[\w\-. /:]{1,250}")


class Metric(NamedTuple):
    key: str
    value: float
    timestamp: int
    step: int


class Param(NamedTuple):
    key: str
    value: str


class RunTag(NamedTuple):
    key: str
    value: str


class Experiment(NamedTuple):
    experiment_id: str
    lifecycle_stage: str


class _Run:
    def __init__(self, name: str, start_time: int) -> None:
        self.info = self
        self.run_id, self.start_time = name, start_time
        self.metrics: list[Metric] = []
        self.params: dict[str, str] = {}
        self.tags: dict[str, str] = {}
        self.ended: tuple[str, int] | None = None


class MlflowClient:
    """Of MLflow's file store: an experiment is a folder, and one that is deleted by hand keeps its name."""

    stores: ClassVar[dict[str, dict[str, dict[str, _Run]]]] = {}
    fails_at = ""

    def __init__(self, tracking_uri: str) -> None:
        uri = urlparse(tracking_uri)
        assert uri.scheme == "file", "nothing is sent"
        assert Path(uri.path).is_absolute()
        self._root = Path(uri.path)
        self._runs = self.stores.setdefault(uri.path, {})

    def get_experiment_by_name(self, name: str) -> Experiment | None:
        if (self._root / name).is_dir():
            return Experiment(name, "active")
        return Experiment(name, "deleted") if (self._root / ".trash" / name).is_dir() else None

    def create_experiment(self, name: str) -> str:
        assert self.get_experiment_by_name(name) is None
        (self._root / name).mkdir()
        self._runs[name] = {}
        return name

    def delete_experiment(self, experiment: str) -> None:
        (self._root / ".trash").mkdir(exist_ok=True)
        (self._root / experiment).rename(self._root / ".trash" / experiment)

    def create_run(self, experiment: str, *, run_name: str, start_time: int) -> _Run:
        if run_name == self.fails_at:
            raise OSError(28, "No space left on device")
        assert type(start_time) is int
        return self._runs[experiment].setdefault(run_name, _Run(run_name, start_time))

    def log_batch(self, run_id: str, metrics: Any = (), params: Any = (), tags: Any = ()) -> None:
        run = next(runs[run_id] for runs in self._runs.values() if run_id in runs)
        assert run.ended is None
        assert len(metrics) <= 1000
        assert len(params) <= 100
        for each in (*metrics, *params, *tags):
            assert _NAME.fullmatch(each.key), each
        for each in metrics:
            assert type(each.value) is float
            assert type(each.timestamp) is int
            assert each.value == each.value
            run.metrics.append(each)
        for each in params:
            assert each.key not in run.params, "a parameter cannot change"
            assert len(each.value) <= 6000
            run.params[each.key] = each.value
        run.tags |= dict(tags)

    def set_terminated(self, run_id: str, status: str, end_time: int) -> None:
        run = next(runs[run_id] for runs in self._runs.values() if run_id in runs)
        assert status in ("FINISHED", "FAILED", "KILLED")
        assert end_time >= run.start_time
        run.ended = (status, end_time)


class Settings:
    """Of Weights & Biases; unknown ones are errors there, too."""

    def __init__(
        self,
        *,
        mode: str,
        console: str,
        silent: bool,
        disable_git: bool,
        disable_code: bool,
        x_disable_meta: bool,
        x_disable_stats: bool,
    ) -> None:
        assert mode == "offline", "nothing is sent"
        assert console == "off"


class OfflineRun:
    """One run of Weights & Biases in a folder."""

    running: OfflineRun | None = None
    made: ClassVar[list[OfflineRun]] = []

    def __init__(
        self, *, project: str, name: str, id: str, dir: str, config: Any, settings: Settings
    ) -> None:
        assert OfflineRun.running is None, "the run before it has not been finished"
        assert not set(project) & set("/\\#?%:")
        assert 1 <= len(project) <= 128
        assert re.fullmatch(r"[\w-]{1,64}", id)
        assert Path(dir).is_dir()
        (Path(dir) / "wandb" / f"offline-run-20261130_125610-{id}").mkdir(parents=True)
        self.project, self.name, self.config = project, name, dict(config)
        self.history: list[tuple[int, dict[str, float]]] = []
        self.summary: dict[str, Any] = {}
        self.exit_code: int | None = None
        OfflineRun.running = self
        OfflineRun.made.append(self)

    def log(self, numbers: Any, *, step: int) -> None:
        assert not self.history or step > self.history[-1][0], "steps must increase"
        self.history.append((step, dict(numbers)))

    def finish(self, exit_code: int) -> None:
        assert OfflineRun.running is self
        self.exit_code, OfflineRun.running = exit_code, None


def strict_modules() -> dict[str, ModuleType]:
    """The modules by name, for `sys.modules`; they hold nothing yet."""
    MlflowClient.stores, MlflowClient.fails_at = {}, ""
    OfflineRun.running, OfflineRun.made = None, []
    mlflow, entities, wandb = (ModuleType(name) for name in ("mlflow", "mlflow.entities", "wandb"))
    mlflow.MlflowClient = MlflowClient  # type: ignore[attr-defined]
    for each in (Metric, Param, RunTag):
        setattr(entities, each.__name__, each)
    wandb.init, wandb.Settings = OfflineRun, Settings  # type: ignore[attr-defined]
    return {"mlflow": mlflow, "mlflow.entities": entities, "wandb": wandb}
