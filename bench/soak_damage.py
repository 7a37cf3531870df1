"""Damage each file of a stopped run in many ways, run the same command again, and judge what happens.

    python bench/soak_damage.py --damages 100 --json damage.json

The ensemble is trained on the emulated backend. A start is what `hpcbal run` does, with threads for ranks and
loopback channels for MPI, so that a damage takes a fraction of a second. `--only FILE --seed N --damages 1`
repeats a single damage.

A damage is survived if the start trains to the end and

- every DNN has the epochs and the weights of an undisturbed run, or
- a warning that names the damaged file says what is lost, and every DNN has all its epochs;

or if the start is refused with one message that names the damaged file. Neither may print a traceback or the
same warning twice, hang, or change a file outside of the run. Before the start, the verbs that read the file
are tried too.

The JSON holds `damage_survived`, the share of survived damages.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib.util
import io
import itertools
import json
import logging
import os
import random
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from support.config_trial import Hang, limited
from support.damages import FOREIGN, choose, foreign_file
from support.figures import parser_of, write_figures

from hpcbal.checkpoint.best import read_best
from hpcbal.checkpoint.reader import read_checkpoint
from hpcbal.cli.main import main as hpcbal
from hpcbal.config import load_ensemble
from hpcbal.errors import HpcbalError
from hpcbal.runtime.handoff.finished import report_of_finished
from hpcbal.runtime.handoff.launch_dir import RunRequest
from hpcbal.runtime.record.final_report import write_final_report
from hpcbal.telemetry.claim.run_lock import RunLock
from hpcbal.telemetry.files.run_directory import RunDirectory
from hpcbal.telemetry.resources.processes import identity_of
from hpcbal.telemetry.streams.rank_log import configure_rank_logging

ROLES = Path(__file__).resolve().parents[1] / "tests" / "unit" / "runtime"
"""The folder of the tests that play all roles in one process; `load_roles` borrows what plays them."""

EPOCHS = {"a": 4, "b": 2, "c": 3}
STOP_STEPS = (8, 22, None)
"""When runs are stopped: two DNNs train and one waits; two are done and one trains; None: all are done."""
KEEPS = ("both", "best")
"""The values of `checkpoint.keep` that are tried; with `best`, a DNN that is done has no other weights."""
TOLERANCE = 1e-9
"""Weights in float64 differ by less if only the number of slots differs, which changes the order of sums."""

LONGEST_S = 120.0
"""A start or a verb that takes longer hangs; a start takes a fraction of a second, if the machine is idle."""

HEARD_THREADS = ("MainThread", "rank-0")
"""Only rank 0 prints its warnings; the other ranks have logs."""

FILES = (
    "config.yaml",
    "ledger.jsonl",
    "profile.json",
    "status.json",
    "results.csv",
    "report.html",
    "timeline.json.gz",
    "logs/rank-000.log",
    "dnns/*/checkpoint.h5",
    "dnns/*/checkpoint.previous.h5",
    "dnns/*/best.h5",
    "dnns/*/best.previous.h5",
    "dnns/*/metrics.jsonl",
    "dnns/*/events.out.tfevents.*",
    "run.lock",
    "logs",
    "dnns",
    "dnns/*",
)
"""Patterns of the paths to damage, relative to the run's directory."""


READ_BY_VERBS = ("config.yaml", "ledger.jsonl", "profile.json", "status.json", "results.csv")
"""The files among them that `status`, `report`, `plan` and `simulate` read."""


@dataclass
class Heard:
    """The output of a start, and its warnings."""

    printed: io.StringIO = field(default_factory=io.StringIO)
    tracebacks: list[str] = field(default_factory=list)

    @property
    def text(self) -> str:
        return self.printed.getvalue()

    def repeated(self) -> list[str]:
        """Warnings that were printed more than once."""
        lines = [line for line in self.text.splitlines() if "warning" in line]
        return [line for line, count in Counter(lines).items() if count > 1]


class _Listener(logging.Handler):
    """Collects what is logged: warnings as lines, tracebacks on their own."""

    def __init__(self, heard: Heard) -> None:
        super().__init__(logging.WARNING)
        self._heard = heard

    def emit(self, record: logging.LogRecord) -> None:
        if record.exc_info and record.exc_info[1] is not None:
            self._heard.tracebacks.append("".join(traceback.format_exception(record.exc_info[1])))
        elif record.name.split(".")[0] == "hpcbal" and record.threadName in HEARD_THREADS:
            self._heard.printed.write(f"warning: {record.getMessage()}\n")


@contextlib.contextmanager
def listening() -> Iterator[Heard]:
    """Catch all output of this process."""
    heard = Heard()
    listener = _Listener(heard)
    before = threading.excepthook
    threading.excepthook = lambda args: heard.tracebacks.append(repr(args.exc_value))
    logging.getLogger().addHandler(listener)
    try:
        with contextlib.redirect_stdout(heard.printed), contextlib.redirect_stderr(heard.printed):
            yield heard
    finally:
        logging.getLogger().removeHandler(listener)
        threading.excepthook = before


@dataclass(frozen=True)
class Judgement:
    """How a start after a damage ended.

    Attributes:
        kind: `right`, `lossy` (all epochs, and a warning), `refused`, or the name of a fault.
        detail: what was printed that matters.
    """

    kind: str
    detail: str = ""

    @property
    def survived(self) -> bool:
        return self.kind in ("right", "lossy", "refused")


Start = Callable[[], int]
"""Starts the run with the same command; returns the exit code, or raises HpcbalError for a refusal."""


def judge(start: Start, root: Path, damaged: Path, calm: Mapping[str, Any]) -> Judgement:
    """Start once and compare the end with an undisturbed run.

    Args:
        root: the run's directory.
        damaged: the path that was damaged.
        calm: what `outcome_of` returned for the undisturbed run.
    """
    with listening() as heard, limited(LONGEST_S, of_cpu=False):
        try:
            code, refusal = start(), ""
        except HpcbalError as error:
            code, refusal = int(error.exit_code), str(error)
        except BaseException as error:
            return Judgement("traceback", "".join(traceback.format_exception(error)))
    if heard.tracebacks:
        return Judgement("traceback", heard.tracebacks[0])
    if heard.repeated():
        return Judgement("repeated", heard.repeated()[0])
    name = damaged.name.split(".tfevents")[0]
    if foreign_file(damaged).read_bytes() != FOREIGN or foreign_file(damaged).with_name("not-there").exists():
        return Judgement("foreign file changed", heard.text)
    if refusal:
        is_named = name in refusal or str(root) in refusal
        return Judgement("refused" if is_named else "refused without the name", refusal)
    if code != 0:
        return Judgement(f"exit code {code}", heard.text)
    if (lock := RunDirectory(root).lock) != damaged and lock.is_file():
        return Judgement("run.lock stays", heard.text)
    problem = differs(outcome_of(root), calm)
    if problem is None:
        return Judgement("right", heard.text)
    warned = [line for line in heard.text.splitlines() if "warning" in line and name in line]
    if problem.startswith("weights") and warned:
        return Judgement("lossy", warned[0])
    return Judgement("wrong, but reported" if warned else "wrong without a word", problem)


def outcome_of(root: Path) -> dict[str, Any]:
    """Of each DNN the history, without times, and the last and best arrays; None if it has no checkpoint."""
    found: dict[str, Any] = {}
    for name in EPOCHS:
        state, _ = read_checkpoint(root / "dnns" / name)
        history = [] if state is None else [(r.epoch, r.pass_index, dict(r.metrics)) for r in state.history]
        best, _, _ = read_best(root / "dnns" / name, with_arrays=True)
        arrays = {} if best is None else {f"best/{key}": array for key, array in best.arrays.items()}
        found[name] = None if state is None else (history, {**state.arrays, **arrays})
    return found


def differs(got: Mapping[str, Any], wanted: Mapping[str, Any]) -> str | None:
    """Return the difference: `epochs ...` or `weights ...`; None if there is none."""
    for name, (history, arrays) in wanted.items():
        if got[name] is None:
            return f"epochs: {name} has no checkpoint"
        own_history, own_arrays = got[name]
        if [record[0] for record in own_history] != [record[0] for record in history]:
            return f"epochs: {name} has {[record[0] for record in own_history]}"
        for key, array in arrays.items():
            if key.startswith("best/optimizer/"):  # there if the best epoch is also that of the checkpoint
                continue
            if key not in own_arrays:
                return f"weights: {name}/{key} is lost"
            distance = float(np.max(np.abs(own_arrays[key] - array), initial=0.0))
            if not distance <= TOLERANCE:
                return f"weights: {name}/{key} differs by {distance:.3g}"
    return None


def try_readers(config: Path, root: Path) -> str | None:
    """Call the verbs that read a run's directory; the first fault, or None."""
    page = root.parent / "page.html"
    for argv in (
        ["status", str(root)],
        ["status", "--json", str(root)],
        ["report", "--no-plots", "-o", str(page), str(root)],
        ["plan", str(config), "--profile", str(root), "--samples", "60"],
        ["simulate", str(config), "--samples", "60", "--seeds", "1"],
    ):
        with listening() as heard, limited(LONGEST_S, of_cpu=False):
            try:
                hpcbal(argv)
            except (Exception, SystemExit, Hang) as error:
                return f"hpcbal {' '.join(argv)}\n{''.join(traceback.format_exception(error))}"
        if heard.tracebacks or "Traceback" in heard.text or heard.repeated():
            return f"hpcbal {' '.join(argv)}\n{''.join(heard.tracebacks)}{heard.text}"
    return None


def load_roles() -> Any:
    """The module that plays all roles of a run in one process."""
    sys.path[:0] = [str(ROLES / "programs"), str(ROLES.parents[1] / "helpers")]
    spec = importlib.util.spec_from_file_location("roles_in_process", ROLES / "conftest.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def configure(run: Any, keep: str) -> None:
    """Write the configuration of the ensemble: three DNNs on two slots, so that one has to wait."""
    rates = {
        "a": {1: 4e5, 2: 7.8e5},
        "b": {1: 8e5, 2: 1.5e6},
        "c": {1: 8.2e5, 2: 1.55e6},
    }
    model = {"model": "in_process_toys:toy", "args": {"hook": "act"}}
    dnns = [{"name": name, **model, "stop": {"max_epochs": epochs}} for name, epochs in EPOCHS.items()]
    backend = {"name": "emulated", "precision": "float64", "collective": "mpi", "rates": rates}
    checkpoint = {"interval_s": 0.0, "keep": keep}
    run.configure(
        dnns=dnns, backend=backend, schedule={"paradigm": "global", "delta": "15%"}, checkpoint=checkpoint
    )


def start_in_process(run: Any) -> int:
    """Start as `hpcbal run` does: look for a finished run, then play all roles, then write the report."""
    request = RunRequest(run.folder / "run.yaml")
    config = load_ensemble(request.config_path, check_imports=True)
    finished = report_of_finished(request, config)
    if finished is not None:
        print(finished[0])
        return finished[1]
    code = run.run()
    with configure_rank_logging(run.out, 0, "host"):
        pass
    write_final_report(RunDirectory(run.out))
    return int(code)


@dataclass(frozen=True)
class Lab:
    """Stopped runs to damage copies of, and the end of an undisturbed one.

    Attributes:
        run: the run in process; its `out` is the directory that each start uses.
        stopped: directories of runs that were stopped at different moments, never changed, each with its
            `checkpoint.keep`.
        calm: the outcome of the undisturbed run, by `checkpoint.keep`.
    """

    run: Any
    stopped: Sequence[tuple[Path, str]]
    calm: Mapping[str, Mapping[str, Any]]

    def restore(self, stopped: Path, keep: str) -> None:
        """Make `out` a copy of a stopped run, with its configuration, and the foreign file as it was."""
        configure(self.run, keep)
        if self.run.out.exists():
            remove_tree(self.run.out)
        shutil.copytree(stopped, self.run.out, symlinks=True)
        foreign = self.run.folder / "foreign"
        foreign.mkdir(exist_ok=True)
        (foreign / "not-there").unlink(missing_ok=True)
        (foreign / "file").write_bytes(FOREIGN)

    def try_damage(self, pattern: str, seed: int, start: Start | None = None) -> tuple[str, Judgement]:
        """Do one damage and start again; returns what was damaged, and the judgement.

        Args:
            pattern: one of `FILES`.
            seed: chooses the moment of the stop, the path and the damage.
            start: the start to judge; by default in this process.
        """
        rng = random.Random(f"{pattern} {seed}")
        moments = [each for each in self.stopped if next(each[0].glob(pattern), None) is not None]
        stopped, keep = moments[seed % len(moments)]
        self.restore(stopped, keep)
        damaged = rng.choice(sorted(self.run.out.glob(pattern)))
        name, damage = choose(damaged, rng)
        path = damaged.relative_to(self.run.out)
        what = f"{stopped.name}, {path}, seed {seed}: {name}: {damage(damaged, rng)}"
        if pattern in READ_BY_VERBS:
            fault = try_readers(self.run.folder / "run.yaml", self.run.out)
            if fault is not None:
                return what, Judgement("a reader fails", fault)
        found = judge(start or (lambda: start_in_process(self.run)), self.run.out, damaged, self.calm[keep])
        return what, found


def remove_tree(root: Path) -> None:
    """Remove a directory, even if some of its parts are unreadable."""
    root.chmod(0o700)
    for folder, names, _ in os.walk(root):
        for name in names:
            if not Path(folder, name).is_symlink():
                Path(folder, name).chmod(0o700)
    shutil.rmtree(root)


def make_lab(folder: Path, run: Any, hooks: dict[str, Callable[[int], Any]]) -> Lab:
    """Train undisturbed runs, and runs that are stopped by a signal to a trainer or have finished.

    Args:
        folder: a new folder for all of them.
        run: an `InProcessRun` in it.
        hooks: what the models call in their steps.
    """
    (folder / ".run").touch()
    run.out = folder / "out"
    calm, stopped = {}, []
    for keep, stop_step in itertools.product(KEEPS, STOP_STEPS):
        configure(run, keep)
        hooks["act"] = (lambda step: None) if stop_step is None else _stop_at(stop_step, run)
        code, wanted = start_in_process(run), 0 if stop_step is None else 75
        assert code == wanted, f"the run was to end with {wanted}, but ended with {code}"
        if stop_step is None:
            calm[keep] = outcome_of(run.out)
        RunDirectory(run.out).lock.write_text(lock_of_dead_run(), encoding="utf-8")
        when = "finished" if stop_step is None else f"stopped-{stop_step}"
        stopped.append((folder / f"{when}-{keep}", keep))
        run.out.rename(stopped[-1][0])
    hooks["act"] = lambda step: None
    return Lab(run, stopped, calm)


def lock_of_dead_run() -> str:
    """The lock that a killed run leaves on this host."""
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE) as dead:
        process = {"pid": dead.pid, **identity_of(dead.pid)}
    return json.dumps({"host": socket.gethostname(), **process, "token": "dead", "beat": 3}) + "\n"


def hurry() -> None:
    """Wait only a moment for a sign of life of a lock that names no process of this host."""
    defaults = RunLock.__init__.__kwdefaults__
    assert defaults is not None
    defaults["stale_s"] = 0.2


def _stop_at(stop_step: int, run: Any) -> Callable[[int], None]:
    num_steps = 0

    def act(step: int) -> None:
        nonlocal num_steps
        num_steps += step > 0
        if num_steps == stop_step:
            run.ranks.signal(2)

    return act


def main(argv: Sequence[str] | None = None) -> int:
    """Print one line per file, and the damages that were not survived."""
    parser = parser_of(__doc__)
    parser.add_argument("--damages", type=int, default=100, help="damages of each file")
    parser.add_argument("--seed", type=int, default=0, help="number of the first damage")
    parser.add_argument("--only", action="append", choices=FILES, help="damage only this file")
    parser.add_argument("--verbose", action="store_true", help="print every damage")
    args = parser.parse_args(argv)
    figures: Counter[str] = Counter()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        obey_permissions()
        hurry()
        os.chdir(folder)
        roles = load_roles()
        with listening() as heard:
            lab = make_lab(folder, roles.InProcessRun(folder), roles.toys().HOOKS)
        assert not heard.tracebacks, heard.tracebacks
        for pattern in args.only or FILES:
            kinds: Counter[str] = Counter()
            for seed in range(args.seed, args.seed + args.damages):
                what, found = lab.try_damage(pattern, seed)
                kinds[found.kind] += 1
                figures["survived"] += found.survived
                if args.verbose or not found.survived:
                    print(f"{what}\n  {found.kind}: {found.detail.strip()[-3000:]}", flush=True)
            print(f"{pattern:32} {dict(kinds)}", flush=True)
            figures["damages"] += kinds.total()
        remove_tree(lab.run.out)
    share = figures["survived"] / figures["damages"]
    print(f"damage_survived {share:.4f} ({figures['survived']} of {figures['damages']})")
    write_figures(args.json, {"damage_survived": share, "num_damages": figures["damages"]})
    return 0 if share == 1.0 else 1


def obey_permissions() -> None:
    """Give up root's right to read and write everything, which would make a part of the damages harmless.

    Linux only (capset, capability version 3); does nothing for ordinary users.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    header = (ctypes.c_uint32 * 2)(0x20080522, 0)
    sets = (ctypes.c_uint32 * 6)()  # effective, permitted, inheritable; then the upper halves
    if libc.capget(header, sets) == 0:
        sets[0] &= ~0b110  # CAP_DAC_OVERRIDE is 1, CAP_DAC_READ_SEARCH is 2
        libc.capset(header, sets)


if __name__ == "__main__":
    sys.exit(main())
