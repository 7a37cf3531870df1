"""A small ensemble in a folder of its own, run as a user runs it: `lab.run("run", "run.yaml")`."""

from __future__ import annotations

import contextlib
import copy
import fcntl
import io
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import yaml
from support.starting import MPI_ENVIRONMENT

from hpcbal.checkpoint.reader import read_checkpoint
from hpcbal.cli.main import main
from hpcbal.policies.rates import RateTable, profile_to_dict
from hpcbal.telemetry.ledger.file import read_ledger
from hpcbal.telemetry.views.results import ResultRow, read_results

ROOT = Path(__file__).parents[2]

ENVIRONMENT = {**MPI_ENVIRONMENT, "OMP_NUM_THREADS": "1", "TF_NUM_INTEROP_THREADS": "1"}
PATIENCE_S = 120.0
"""After this, a run hangs. Four ranks that import TensorFlow, which takes 6 s of a core each, have needed
60 s on two busy cores of a slow host."""

# 120 points in 6 dimensions around 3 centres, images of 4 classes, and models that misbehave on request.
TOYS = '''\
import os
import time

import numpy as np

from hpcbal.data.spec import LabelSpec, SampleSpec
from hpcbal.models import EmulatedModel


class Points:
    """Noisy points around three centres; some can be said to be broken."""

    num_classes = 3
    sample_spec = SampleSpec.of((6,), "float64")
    label_spec = LabelSpec((), "int64")

    def __init__(self, num_samples=120, broken=0):
        rng = np.random.default_rng(1)
        self._labels = np.arange(num_samples) % 3
        self._points = rng.normal(size=(3, 6))[self._labels] + rng.normal(size=(num_samples, 6))
        self._broken = broken

    def __len__(self):
        return len(self._points)

    def read(self, sample_id):
        with open(f"reads-{os.getpid()}", "ab") as file:  # its size counts
            file.write(b"r")
        if sample_id < self._broken and not os.path.exists("mended"):
            raise ValueError("the point is broken")
        return self._points[sample_id], self._labels[sample_id]

    def describe(self, sample_id):
        return f"point {sample_id}"


class Images:
    """Noisy images of four classes; scikit-learn, which has digits, takes each rank a second to import."""

    num_classes = 4
    sample_spec = SampleSpec.of((8, 8, 1), "uint8")
    label_spec = LabelSpec((), "int64")

    def __init__(self, num_samples=480):
        rng = np.random.default_rng(2)
        self._labels = np.arange(num_samples) % 4
        pixels = rng.integers(60, 200, (4, 8, 8, 1))[self._labels] + rng.normal(0, 20, (num_samples, 8, 8, 1))
        self._images = np.rint(pixels.clip(0, 255)).astype(np.uint8)

    def __len__(self):
        return len(self._images)

    def read(self, sample_id):
        return self._images[sample_id], self._labels[sample_id]

    def describe(self, sample_id):
        return f"image {sample_id}"


class Toy(EmulatedModel):
    """Softmax regression; `trouble` strikes in step `at` of each process, or while it is built.

    With trouble `turns` each of three ranks in turn is slow for three steps.
    """

    def __init__(self, trouble, at, only_rank, pace_s):
        super().__init__(6, 3)
        self._trouble, self._at, self._only_rank, self._steps = trouble, at, only_rank, 0
        self._pace_s, self._rank = pace_s, int(os.environ.get("OMPI_COMM_WORLD_RANK", "0"))
        if self._trouble == "build" and self.is_here():
            raise RuntimeError("no such layer")

    def is_here(self):
        """Whether the trouble is that of this rank of the job."""
        return self._only_rank in (None, self._rank)

    def initial_parameters(self, rng):
        parameters = super().initial_parameters(rng)
        if self._trouble == "name" and self.is_here():
            parameters["odd//name"] = np.zeros(1)
        return parameters

    def loss_and_gradient(self, parameters, x, y):
        self._steps += 1
        slow = self._trouble == "turns" and (self._rank + self._steps // 3) % 3 == 0
        time.sleep(self._pace_s * len(x) * (4 if slow else 1))
        loss, correct, gradients = super().loss_and_gradient(parameters, x, y)
        if self._trouble == "late" and self.is_here():
            time.sleep(0.2)
        if self._trouble and self._steps == self._at and self.is_here():
            if self._trouble == "raise":
                raise RuntimeError("the layers do not fit")
            if self._trouble == "exit":
                raise SystemExit(4)
            if self._trouble == "memory":
                raise MemoryError("17 GiB asked for")
            if self._trouble == "sleep":
                time.sleep(3600)
            if self._trouble == "nan":
                loss = float("nan")
        return loss, correct, gradients


def points(num_samples=120, broken=0):
    return Points(num_samples, broken)


def images(num_samples=480):
    return Images(num_samples)


def toy(input_shape, num_classes, trouble="", at=3, only_rank=None, pace_s=0.0):
    """A model; the user mends it by making the file `mended`."""
    return Toy("" if os.path.exists("mended") else trouble, at, only_rank, pace_s)
'''

BASE: dict[str, Any] = {
    "name": "lab",
    "seed": 5,
    "data": {"dataset": "toys:points"},
    "defaults": {
        "batch_size": 16,
        "optimizer": {"name": "sgd", "learning_rate": 0.05, "momentum": 0.9},
        "stop": {"max_epochs": 3},
    },
    "dnns": [
        {"name": "a", "model": "toys:toy", "stop": {"max_epochs": 5}},
        {"name": "b", "model": "toys:toy", "stop": {"max_epochs": 3}},
        {"name": "c", "model": "toys:toy", "stop": {"max_epochs": 4}},
    ],
    # 120 positions a pass: a lasts about 0.2 s on one slot. Rounds: a+a, b, c by their rates.
    "backend": {
        "name": "emulated",
        "precision": "float64",
        "rates": {
            "a": {1: 400, 2: 780, 3: 1100},
            "b": {1: 800, 2: 1500, 3: 2000},
            "c": {1: 820, 2: 1550, 3: 2100},
        },
    },
    "schedule": {"paradigm": "global", "delta": "15%"},
    "slots": {"per_node": 3},
    "dataplane": {"ring_bytes": "8KiB", "block_samples": 8},
    "checkpoint": {"interval_s": 0.0},
    "output": {"dir": "out"},
}


class Done:
    """A process that has ended."""

    def __init__(self, code: int, out: str, err: str) -> None:
        self.code, self.out, self.err = code, out, err

    def __repr__(self) -> str:
        return f"exit code {self.code}\n--- stdout\n{self.out}\n--- stderr\n{self.err}"


class Running:
    """A running start of the program; all its processes share one session."""

    def __init__(self, command: Sequence[str], cwd: Path, env: Mapping[str, str]) -> None:
        # Files, not pipes: a process that outlives its parent would keep a pipe open.
        self._paths = [cwd / ".stdout", cwd / ".stderr"]
        with self._paths[0].open("wb") as out, self._paths[1].open("wb") as err:
            # A session of its own: the kernel shares cores among sessions, so tests beside it do not starve
            # what runs at low priority in it.
            self.process = subprocess.Popen(
                list(command), cwd=cwd, env=dict(env), stdout=out, stderr=err, start_new_session=True
            )
        self._token = env["HPCBAL_TEST_TOKEN"]

    def pids(self) -> dict[int, int]:
        """Process id by rank of the ranks that live."""
        found = {}
        for pid in self.all_pids():
            environ = _environ(pid)
            if "OMPI_COMM_WORLD_RANK" in environ:
                found[int(environ["OMPI_COMM_WORLD_RANK"])] = pid
        return found

    def all_pids(self) -> list[int]:
        """All processes that came out of this start and still run."""
        return [
            pid
            for pid in (int(p.name) for p in Path("/proc").iterdir() if p.name.isdigit())
            if _environ(pid).get("HPCBAL_TEST_TOKEN") == self._token and _state(pid) != "Z"
        ]

    def until(self, condition: Callable[[], Any], what: str, timeout_s: float = PATIENCE_S) -> Any:
        """Wait until `condition` gives something true; fail if the program ends before."""
        deadline = time.monotonic() + timeout_s
        while not (value := condition()):
            if self.process.poll() is not None or time.monotonic() > deadline:
                self.kill_all()
                pytest.fail(f"no {what} before the end:\n{self.wait()}")
            time.sleep(0.01)
        return value

    def signal_rank(self, rank: int, number: signal.Signals) -> None:
        os.kill(self.pids()[rank], number)

    def wait(self, timeout_s: float = PATIENCE_S, ranks_s: float = 30.0) -> Done:
        """Wait for the end; `ranks_s` seconds later, nothing of it may be left."""
        try:
            code = self.process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self.kill_all()
            pytest.fail(f"it hangs:\n{self._done(self.process.wait())}")
        deadline = time.monotonic() + ranks_s
        while (left := self.all_pids()) and time.monotonic() < deadline:
            time.sleep(0.05)
        names = [f"{pid} ({_state(pid)}, rank {_environ(pid).get('OMPI_COMM_WORLD_RANK')})" for pid in left]
        assert not left, f"processes {names} were left behind:\n{self._done(code)}"
        return self._done(code)

    def kill_all(self) -> None:
        for pid in self.all_pids():
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue  # it has just ended

    def _done(self, code: int) -> Done:
        out, err = (path.read_text(encoding="utf-8", errors="replace") for path in self._paths)
        return Done(code, out, err)


def _environ(pid: int) -> dict[str, str]:
    try:
        raw = Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:  # it has ended, or is another user's
        return {}
    entries = (entry.partition("=") for entry in raw.decode(errors="replace").split("\0"))
    return {name: value for name, _, value in entries}


def _state(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return "Z"


class Lab:
    """A folder with `run.yaml` and the module that it names."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.out = folder / "out"
        self.num_ranks = 5
        self._num_starts = 0
        self._running: list[Running] = []
        self._read: tuple[Any, list[Any]] = (None, [])
        self.tmp = folder / "tmp"  # of the runs: what a killed one leaves must not stay on the machine
        self.tmp.mkdir()
        (folder / "toys.py").write_text(TOYS, encoding="utf-8")
        self.configure()

    def configure(self, change: Callable[[dict[str, Any]], object] | None = None, **sections: Any) -> None:
        """Write run.yaml: the base, with `sections` replaced and changed by `change`."""
        config = {**copy.deepcopy(BASE), **sections}
        if change is not None:
            change(config)
        (self.folder / "run.yaml").write_text(yaml.safe_dump(config, sort_keys=False), encoding="utf-8")

    def known_rates(self, rates: Mapping[str, Mapping[int, float]]) -> dict[str, str]:
        """Keys of `schedule.profiling` with which nothing is measured, as TensorFlow takes its time for that.

        Args:
            rates: samples/s by number of slots by DNN.
        """
        table = RateTable(rates, slots_per_node=max(map(max, rates.values())))
        profile = profile_to_dict(table, {name: name for name in rates})
        (self.folder / "rates.json").write_text(json.dumps(profile), encoding="utf-8")
        return {"rates": "rates.json"}

    def start(self, *arguments: str, num_ranks: int | None = None, **env: str) -> Running:
        """Start `hpcbal *arguments` (`run run.yaml` if none), under mpirun if `num_ranks` says so."""
        command = [sys.executable, "-m", "hpcbal", *(arguments or ("run", "run.yaml"))]
        if num_ranks is not None:
            mpirun = str(Path(sys.executable).parent / "mpirun")
            if not Path(mpirun).exists():
                mpirun = "mpirun"
            command = [mpirun, "--oversubscribe", "-n", str(num_ranks), *command]
            # A killed mpirun leaves files that one of the same process id later fails over.
            env = {"PRTE_MCA_prte_tmpdir_base": str(self.tmp), **env}
        return self._start(command, env)

    def python(self, name: str, text: str) -> Running:
        """Start a script with this text; it must have a name of its own, which others may import."""
        (self.folder / name).write_text(text, encoding="utf-8")
        return self._start([sys.executable, name], {})

    def python_code(self, code: str) -> Running:
        """Start Python with code that has no file, as in a notebook."""
        return self._start([sys.executable, "-c", code], {})

    def _start(self, command: list[str], env: Mapping[str, str]) -> Running:
        self._num_starts += 1
        path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
        token = f"{self.folder}:{self._num_starts}"
        fixed = {"PYTHONPATH": path, "HPCBAL_TEST_TOKEN": token, "TMPDIR": str(self.tmp)}
        environment = {**os.environ, **ENVIRONMENT, **fixed, **env}
        running = Running(command, self.folder, environment)
        self._running.append(running)
        return running

    def run_alone(self, *arguments: str) -> Done:
        """As `run`, as the only rank of its job: quick, for what ends before ranks matter."""
        return self.run(*arguments, PMI_RANK="0", PMI_SIZE="1")

    def run_here(self, *arguments: str) -> Done:
        """Run a verb that starts nothing in this process, where its modules have been imported."""
        out, err = io.StringIO(), io.StringIO()
        with contextlib.chdir(self.folder), contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            code = main(list(arguments))
        return Done(code, out.getvalue(), err.getvalue())

    def run(self, *arguments: str, num_ranks: int | None = None, **env: str) -> Done:
        """As `start`, to its end."""
        return self.start(*arguments, num_ranks=num_ranks, **env).wait()

    def close(self) -> None:
        for running in self._running:
            running.kill_all()
            running.process.wait()

    # ---- what a run has left -------------------------------------------------------------------

    def events(self, name: str | None = None) -> list[Any]:
        """Lines of the ledger, of one kind."""
        path = self.out / "ledger.jsonl"
        status = path.stat() if path.exists() else None
        state = status and (status.st_ino, status.st_size, status.st_mtime_ns)
        if state != self._read[0]:  # tests poll, and reading takes the time of the ranks
            self._read = state, [entry.line for entry in read_ledger(path)]
        return [line for line in self._read[1] if name in (None, line.event)]

    def status(self) -> dict[str, Any]:
        status: dict[str, Any] = json.loads((self.out / "status.json").read_text(encoding="utf-8"))
        return status

    def results(self) -> dict[str, ResultRow]:
        return {row.name: row for row in read_results(self.out / "results.csv")}

    def outcome(self, *, killed: bool = False) -> dict[str, tuple[Any, dict[str, np.ndarray]]]:
        """Of each DNN the history, without times, and the arrays of its checkpoint.

        Args:
            killed: the run may have left a save half done, before or between its two renames.
        """
        found = {}
        for directory in sorted((self.out / "dnns").iterdir()):
            state, warnings = read_checkpoint(directory)
            half_done = [text for text in warnings if killed and "interrupted" in text]
            assert warnings == half_done
            assert state is not None
            history = [(r.epoch, r.pass_index, dict(r.metrics)) for r in state.history]
            found[directory.name] = (history, dict(state.arrays))
        return found


def assert_same_outcome(
    got: Mapping[str, tuple[Any, Mapping[str, np.ndarray]]],
    wanted: Mapping[str, tuple[Any, Mapping[str, np.ndarray]]],
    *,
    passes: bool = True,
) -> None:
    """Weights, optimizer and history of every DNN agree to 1e-12."""
    assert got.keys() == wanted.keys()
    for name, (history, arrays) in wanted.items():
        got_history, got_arrays = got[name]
        assert [h[0] for h in got_history] == [h[0] for h in history], name
        if passes:
            assert [h[1] for h in got_history] == [h[1] for h in history], name
        for mine, theirs in zip(got_history, history, strict=True):
            assert mine[2] == pytest.approx(theirs[2], rel=1e-12), name
        assert got_arrays.keys() == arrays.keys()
        for key, array in arrays.items():
            np.testing.assert_allclose(
                got_arrays[key], array, rtol=1e-12, atol=1e-12, err_msg=f"{name}/{key}"
            )


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[Lab]:
    """The small ensemble; whatever a test leaves running is ended."""
    lab = Lab(tmp_path)
    yield lab
    lab.close()


@pytest.fixture(scope="session")
def same_outcome() -> Callable[..., None]:
    return assert_same_outcome


class FinishedRun(NamedTuple):
    """A run that nothing has disturbed, for all tests that only read what it has left; and its output."""

    lab: Lab
    done: Done


@pytest.fixture(scope="session")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FinishedRun]:
    """The small ensemble, run once for all workers; each has a copy of what it left."""
    lab = Lab(tmp_path_factory.mktemp("finished"))
    base = tmp_path_factory.getbasetemp()
    known = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "finished.json"
    with known.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if known.exists():
            folder, *ended = json.loads(known.read_text(encoding="utf-8"))
            done = Done(*ended)
            shutil.copytree(Path(folder) / "out", lab.out)
        else:
            done = lab.run()
            assert done.code == 0, done
            kept = [str(lab.folder), done.code, done.out, done.err]
            known.write_text(json.dumps(kept), encoding="utf-8")
    yield FinishedRun(lab, done)
    lab.close()


@pytest.fixture(scope="session")
def undisturbed(finished: FinishedRun) -> Mapping[str, Any]:
    """The outcome of the small ensemble when nothing happens to it."""
    return finished.lab.outcome()


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """hpcbal as pip builds it from a clone, with the build tools of this environment."""
    folder = tmp_path_factory.mktemp("wheel")
    source = folder / "source"
    source.mkdir()
    for name in ("pyproject.toml", "setup.py", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    shutil.copytree(ROOT / "hpcbal", source / "hpcbal", ignore=shutil.ignore_patterns("__pycache__", "*.so"))
    command = [sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation", "--no-index"]
    done = subprocess.run(
        [*command, "--wheel-dir", str(folder), str(source)],
        env={name: value for name, value in os.environ.items() if name != "PYTHONPATH"},
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    (built,) = folder.glob("*.whl")
    return built
