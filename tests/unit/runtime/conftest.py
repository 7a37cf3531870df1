"""The ranks of a run as threads of one process: the real roles over loopback channels, without MPI."""

from __future__ import annotations

import contextlib
import copy
import importlib
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import ModuleType
from typing import Any, cast

import numpy as np
import pytest
import yaml
from loopback import LoopbackChannel
from loopback_groups import LoopbackGroups, LoopbackHub
from loopback_wave import LoopbackWave

from hpcbal.checkpoint.reader import read_checkpoint
from hpcbal.checkpoint.state import TrainingState
from hpcbal.cluster.roles import RankInfo, Roles, assign_roles
from hpcbal.comm.channel import Channel
from hpcbal.config import EnsembleConfig, load_config
from hpcbal.data.augmentation import check_augmentations
from hpcbal.data.source import PreprocessedSamples, open_source
from hpcbal.dataplane.producer import NodeTopology, Producer
from hpcbal.dataplane.replication import OneNode
from hpcbal.dataplane.ring import NodeRing
from hpcbal.runtime.handoff.launch_dir import RunRequest, load_requested
from hpcbal.runtime.health.ending import StopFlag
from hpcbal.runtime.partitions.loading import PartLoader
from hpcbal.runtime.rank.context import RankContext
from hpcbal.runtime.rank.data import Before, RankData, StreamFacts
from hpcbal.runtime.resuming.opening import open_run
from hpcbal.runtime.roles import group_round
from hpcbal.runtime.roles.preprocessor import Preprocessor
from hpcbal.runtime.roles.trainer import Trainer
from hpcbal.runtime.start.scheduler import make_scheduler
from hpcbal.runtime.start.trainer import emulated_backend
from hpcbal.telemetry.ledger.file import read_ledger
from hpcbal.telemetry.streams.slices import SliceRecorder

PROGRAMS = Path(__file__).parent / "programs"
TIMEOUT_S = 60.0
"""Of a whole test: generous, as the machine may be busy; what passes never comes near."""

BASE: dict[str, Any] = {
    "name": "lab",
    "seed": 5,
    "data": {"dataset": "in_process_toys:points"},
    "defaults": {
        "batch_size": 16,
        "optimizer": {"name": "sgd", "learning_rate": 0.05, "momentum": 0.9},
        "stop": {"max_epochs": 2},
    },
    "dnns": [
        {"name": "a", "model": "in_process_toys:toy"},
        {"name": "b", "model": "in_process_toys:toy", "stop": {"max_epochs": 3}},
    ],
    "backend": {
        "name": "emulated",
        "precision": "float64",
        "collective": "mpi",
        "rates": {"a": {1: 1e6, 2: 1.9e6}, "b": {1: 1e6, 2: 1.9e6}},
    },
    "slots": {"per_node": 2},
    "dataplane": {"ring_bytes": "8KiB", "block_samples": 8},
    "schedule": {"paradigm": "global", "delta": 20.0},
    "checkpoint": {"interval_s": 0.0},
    "output": {"dir": "out"},
}


class Guard(StopFlag):
    """A stop flag that also ends a rank's waits: when another rank has failed, or the test takes too long."""

    def __init__(self) -> None:
        super().__init__()
        self.failure: BaseException | None = None
        self._deadline_s = time.monotonic() + TIMEOUT_S

    def take(self) -> str | None:
        if self.failure is not None:
            raise RuntimeError("another rank has failed") from self.failure
        if time.monotonic() > self._deadline_s:
            raise TimeoutError(f"this rank still waits after {TIMEOUT_S} s")
        return super().take()


def one_node(num_slots: int, num_preprocessors: int = 1) -> Roles:
    """The roles of a node with that many slots."""
    num_ranks = 1 + num_preprocessors + num_slots
    ranks = [RankInfo(rank, 0, "host", 1000 + rank, 0) for rank in range(num_ranks)]
    return assign_roles(ranks, num_slots, num_preprocessors)


def make_context(config: EnsembleConfig, output: Path, roles: Roles, channel: Channel) -> RankContext:
    """A rank whose flag is a `Guard`."""
    return RankContext(
        config=config,
        output=output,
        roles=roles,
        channel=channel,
        stop=Guard(),
        slices=SliceRecorder(
            config.timeline.steps_per_pass,
            num_ranks=channel.size,
            enabled=config.timeline.max_bytes > 0,
        ),
    )


class Ranks:
    """The ranks of one start on one node: contexts, data, groups; and threads that play roles.

    Args:
        config: of the run.
        output: the run's directory.
        num_slots: trainers.
        num_preprocessors: at least 1.
        before: what is known of the run.
    """

    def __init__(
        self,
        config: EnsembleConfig,
        output: Path,
        num_slots: int,
        num_preprocessors: int = 1,
        before: Before | None = None,
    ) -> None:
        self.config = config
        self.roles = one_node(num_slots, num_preprocessors)
        self.channels = LoopbackChannel.connect(len(self.roles.ranks))
        output.mkdir(parents=True, exist_ok=True)
        self.contexts = [make_context(config, output, self.roles, channel) for channel in self.channels]
        source, before = self.source(), before or Before()
        self.misfits = check_augmentations(config.dnns, source, config.seed, before.joined)
        self.facts = StreamFacts.of(config, source, before)
        self.ring = NodeRing.private(self.facts.spec, num_slots, num_preprocessors)
        self.hub = LoopbackHub(num_slots, timeout_s=TIMEOUT_S)
        self._threads: list[threading.Thread] = []
        self._trainers: list[Trainer] = []
        self.codes: dict[int, int] = {}
        self._errors: list[BaseException] = []
        self._arrived: dict[Any, tuple[set[int], set[int]]] = {}

    def source(self) -> PreprocessedSamples:
        """Of a rank of its own."""
        return open_source(self.config)

    def signal(self, rank: int, reason: str = "signal TERM") -> None:
        """As if `rank` had got a signal."""
        self.contexts[rank].stop.reason = reason

    def preprocessor(self, rank: int) -> Preprocessor:
        roles = self.roles
        topology = NodeTopology(roles.node_of_rank, roles.gateway_of_node)
        index = roles.local_producer(rank)
        producer = Producer(self.ring, OneNode(rank), topology, self.source(), index)
        return Preprocessor(self.contexts[rank], producer)

    def trainer(self, rank: int, *, fetches_ahead: bool = True) -> Trainer:
        slot, context = self.roles.trainer_ranks.index(rank), self.contexts[rank]
        num_waves = 0

        def make_wave(slots: Sequence[int]) -> LoopbackWave:
            nonlocal num_waves
            num_waves += 1
            key = (num_waves, tuple(slots))
            arrived = self._arrived.setdefault(key, (set(), set()))
            return LoopbackWave(slot, len(slots), arrived)

        trainer = Trainer(
            context,
            RankData(self.facts, self.ring, None),
            emulated_backend(self.config, self.roles, slot, is_sized=self.facts.spec.is_sized),
            LoopbackGroups(slot, self.hub),
            make_wave,
            ThreadPoolExecutor(1) if fetches_ahead else None,
            PartLoader(context, self.facts) if self.config.data.access == "partitioned" else None,
        )
        self._trainers.append(trainer)
        trainer.open_data()
        return trainer

    def play(self, rank: int, role: Callable[[], Any]) -> None:
        """Let a thread be `rank`; what it returns is in `codes`."""

        def be() -> None:
            toys().RANK.number = rank
            try:
                self.codes[rank] = role()
            except BaseException as error:
                self._errors.append(error)
                self.hub.abort()
                for context in self.contexts:
                    cast("Guard", context.stop).failure = error

        self._threads.append(threading.Thread(target=be, name=f"rank-{rank}", daemon=True))
        self._threads[-1].start()

    def join(self) -> None:
        """Wait for all threads; the first error of any of them is raised."""
        for thread in self._threads:
            thread.join(TIMEOUT_S)
        if self._errors:
            for trainer in self._trainers:  # else it would write into the next start's files
                trainer._writer.close()
            raise self._errors[0]
        left = [thread.name for thread in self._threads if thread.is_alive()]
        assert not left, f"{left} still run"
        self.ring.close()


class InProcessRun:
    """A run directory and its configuration; each `run` is one start of the program, but for MPI."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.out = folder / "out"
        self.num_slots = 2
        self.configure()
        self.ranks: Ranks | None = None

    def configure(self, change: Callable[[dict[str, Any]], object] | None = None, **sections: Any) -> None:
        """Write run.yaml: the base, with `sections` replaced and changed by `change`."""
        config = {**copy.deepcopy(BASE), **sections, "output": {"dir": str(self.out)}}
        config["slots"] = {"per_node": self.num_slots}
        names = {dnn["name"] for dnn in config["dnns"]}
        rates = config["backend"].get("rates", {})
        config["backend"]["rates"] = {name: rates[name] for name in rates if name in names}
        if change is not None:
            change(config)
        (self.folder / "run.yaml").write_text(yaml.safe_dump(config, sort_keys=False), encoding="utf-8")

    def load(self) -> EnsembleConfig:
        config = load_config(self.folder / "run.yaml")
        assert isinstance(config, EnsembleConfig)
        return config

    def run(self, num_preprocessors: int = 1, **options: Any) -> int:
        """One start to its end; returns the exit code, which all ranks must share.

        Args:
            options: of the `RunRequest`.
        """
        request = RunRequest(self.folder / "run.yaml", **options)
        config = load_requested(request, is_rank=True)
        assert isinstance(config, EnsembleConfig)
        opened = open_run(request, config)
        with contextlib.closing(opened):
            earlier = opened.earlier
            trained_on = tuple(earlier.fingerprints.values())
            before = Before(opened.joined, trained_on, tuple(earlier.bad_samples))
            ranks = self.ranks = Ranks(
                opened.config, opened.output, self.num_slots, num_preprocessors, before
            )
            roles = ranks.roles
            devices = [
                "emulated" if rank in roles.trainer_ranks else None for rank in range(len(roles.ranks))
            ]
            data = RankData(ranks.facts, ranks.ring, None, misfits=ranks.misfits)
            scheduler = make_scheduler(ranks.contexts[0], data, opened, devices)
            for rank in roles.preprocessor_ranks:
                ranks.play(rank, lambda rank=rank: ranks.preprocessor(rank).run())
            for rank in roles.trainer_ranks:
                ranks.play(rank, ranks.trainer(rank).run)
            ranks.play(0, scheduler.run)
            ranks.join()
        assert set(ranks.codes) == set(range(len(roles.ranks)))
        assert len(set(ranks.codes.values())) == 1, ranks.codes
        return ranks.codes[0]

    def events(self, name: str) -> list[Any]:
        """Lines of the ledger of one kind."""
        lines = [entry.line for entry in read_ledger(self.out / "ledger.jsonl")]
        return [line for line in lines if line.event == name]

    def state(self, dnn_id: str) -> TrainingState:
        """The checkpoint of a DNN."""
        state, warnings = read_checkpoint(self.out / "dnns" / dnn_id)
        assert state is not None, dnn_id
        assert not warnings
        return state

    def outcome(self) -> dict[str, tuple[Any, dict[str, np.ndarray]]]:
        """Of each DNN the history, without times, and the arrays of its checkpoint."""
        found = {}
        for directory in sorted((self.out / "dnns").iterdir()):
            state = self.state(directory.name)
            history = [(r.epoch, r.pass_index, dict(r.metrics)) for r in state.history]
            found[directory.name] = (history, dict(state.arrays))
        return found


def toys() -> ModuleType:
    return importlib.import_module("in_process_toys")


@pytest.fixture
def hooks(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, Callable[[int], Any]]]:
    """Actions of models when they are built and in their steps, by the name in `args.hook`."""
    monkeypatch.syspath_prepend(str(PROGRAMS))
    module = toys()
    found: dict[str, Callable[[int], Any]] = module.HOOKS
    yield found
    found.clear()
    module.MENDED.clear()
    module.READS.clear()
    module.TRAINED.clear()


@pytest.fixture
def in_process(tmp_path: Path, hooks: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> InProcessRun:
    """A small ensemble; ranks look for messages in every step."""
    monkeypatch.setattr(group_round, "LOOK_INTERVAL_S", 0.0)
    return InProcessRun(tmp_path)


@pytest.fixture
def make_ranks(in_process: InProcessRun, tmp_path: Path) -> Callable[..., Ranks]:
    """Ranks without a scheduler: the test itself plays rank 0."""

    def make(num_slots: int = 1, num_preprocessors: int = 1, **sections: Any) -> Ranks:
        in_process.num_slots = num_slots
        in_process.configure(**sections)
        return Ranks(in_process.load(), tmp_path / "out", num_slots, num_preprocessors)

    return make
