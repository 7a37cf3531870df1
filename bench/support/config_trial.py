"""Try one changed configuration as its user would, in this process, and name what is wrong with the answer.

`hpcbal validate` must accept it, or refuse it with exit code 2 and printable sentences. What it accepts must
read back as written, `hpcbal plan` must plan it, and its operations and dataset must open.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import signal
import sys
import traceback
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

from support.config_changes import Change

FILE = "run.yaml"
MOST_CHARACTERS = 2000
"""Of one sentence."""
TIME_LIMIT_S = 15.0
"""CPU seconds of one verb; a large sweep takes some of them."""
OUTSIDE_THE_FILE = (
    r"profile cannot be read|not a profile|has no rate on 1 slot",  # a file that the configuration names
    r"allowed: at most \d+, one for each slot",  # the size of the allocation
    r"with data\.access 'partitioned'",
    r"are too few for|allowed: at least \d+ with|needs encoded images",  # the samples
    r"samples are |images of \d+|does not say how large",
    r"(two blocks|a block|a batch) of \d+ samples",
    r"too large for the dataset|leaves (none of|no )|no size is known",
    r"No space left|Permission denied|File name too long|Not a directory|File exists",  # the file system
)
"""A refusal by `plan` or `run` for one of these reasons depends on more than the configuration."""


_PLACE = rf"{re.escape(FILE)}(:\d+)?: |--set |hpcbal: \d+ problems|warning: "


class Hang(BaseException):
    """A verb took more CPU time than the limit."""


@dataclass(frozen=True, slots=True)
class Answer:
    """The output of a verb, and its exit code; the traceback of an exception that escaped."""

    code: int
    out: str
    err: str
    traceback: str = ""


def try_change(change: Change, folder: Path) -> tuple[bool, list[str]]:
    """(whether `validate` accepts it, what is wrong).

    Args:
        folder: an empty folder, which becomes the current one for the trial.
    """
    (folder / FILE).write_bytes(change.content)
    sets = [part for override in change.overrides for part in ("--set", override)]
    with _inside(folder):
        answer = ask(["validate", FILE, *sets])
        faults = [f"validate: {fault}" for fault in (*faults_of(answer), *_without_place(answer))]
        if answer.code != 0 or faults:
            return answer.code == 0, faults
        return True, [*_read_back(sets), *_plan(sets), *_open(sets)]


def ask(arguments: Sequence[str], limit_s: float = TIME_LIMIT_S) -> Answer:
    """Call the program in this process."""
    from hpcbal.cli.main import main

    out, err, code, trace = io.StringIO(), io.StringIO(), 1, ""
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err), limited(limit_s):
        try:
            code = main(list(arguments))
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else 1
        except (Exception, Hang) as error:
            trace = f"{type(error).__name__}: {str(error)[:200]} {_place(error)}"
    return Answer(code, out.getvalue(), err.getvalue(), trace)


def faults_of(answer: Answer) -> list[str]:
    """Return the faults in the end of a verb."""
    if answer.traceback:
        return [f"traceback: {answer.traceback}"]
    faults = []
    if answer.code not in (0, 2):
        faults.append(f"exit code {answer.code}: {answer.err[-300:]!r}")
    if answer.code == 2 and not answer.err.strip():
        faults.append("refused without a sentence")
    for line in (answer.out + answer.err).splitlines():
        if len(line) > MOST_CHARACTERS:
            faults.append(f"{len(line)} characters in one line: {line[:200]!r}")
        if not line.isprintable():
            faults.append(f"not printable: {line[:200]!r}")
        if "Traceback (most recent call last)" in line:
            faults.append("prints a traceback")
    return faults


def _without_place(answer: Answer) -> list[str]:
    """Problems that do not say where they are; one sentence at the end may count them."""
    lines = answer.err.splitlines() if answer.code == 2 else []
    return [f"names no place: {line[:200]!r}" for line in lines if not re.match(_PLACE, line)]


def refusal(answer: Answer) -> list[str]:
    """A fault, if a verb refuses what `validate` accepted for a reason that the file alone shows."""
    if answer.code != 2 or any(re.search(reason, answer.err) for reason in OUTSIDE_THE_FILE):
        return []
    return [f"accepted by validate, but: {answer.err.strip()[:300]}"]


def _read_back(sets: list[str]) -> list[str]:
    """The configuration written out must be a configuration, and the same one."""
    written = ask(["validate", FILE, *sets, "--resolved"])
    if faults := [fault for fault in faults_of(written) if not _is_length(fault)]:
        return [f"validate --resolved: {fault}" for fault in faults]
    Path("resolved.yaml").write_text(written.out, encoding="utf-8")
    again = ask(["validate", "resolved.yaml", "--resolved"])
    if again.traceback or again.code != 0:
        return [f"validate of the resolved file: {again.traceback}{again.err[:300]!r}"]
    if again.out != written.out:
        return ["the resolved file resolves to another one"]
    data = ask(["validate", FILE, *sets, "--json"])
    if faults := [fault for fault in faults_of(data) if not _is_length(fault)]:
        return [f"validate --json: {fault}" for fault in faults]
    try:
        json.loads(data.out, parse_constant=_no_constant)
    except ValueError as error:
        return [f"validate --json: {error}"]
    return []


def _is_length(fault: str) -> bool:
    """Whether it is about a long line, as a file that is written out may have."""
    return "characters in one line" in fault


def _no_constant(name: str) -> float:
    raise ValueError(f"{name} is not JSON")


def _plan(sets: list[str]) -> list[str]:
    from hpcbal.config import EnsembleConfig, load_config

    config = load_config(FILE, sets[1::2])
    if not isinstance(config, EnsembleConfig):
        answer = ask(["plan", FILE, *sets])
        return [f"plan: {fault}" for fault in (*faults_of(answer), *refusal(answer))]
    arguments = ["plan", FILE, *sets, "--samples", "1000"]
    if not isinstance(config.slots.per_node, int):
        arguments += ["--slots-per-node", "4"]
    if not config.backend.is_emulated:
        measured = {"slots_per_node": 4, "samples_per_s": {"1": 100.0, "2": 180.0}}
        entries = {dnn.name: {"dnn": dnn.name, **measured} for dnn in config.dnns}
        Path("profile.json").write_text(json.dumps({"format": 1, "entries": entries}), encoding="utf-8")
        arguments += ["--profile", "profile.json"]
    answer = ask(arguments)
    return [f"plan: {fault}" for fault in (*faults_of(answer), *refusal(answer))]


def _open(sets: list[str]) -> list[str]:
    """The operations on samples of any size, and the dataset, if it is one that comes with hpcbal."""
    from hpcbal.config import EnsembleConfig, load_config
    from hpcbal.data.pipeline import build_operations
    from hpcbal.data.source import open_source
    from hpcbal.dataplane.stream import StreamSpec
    from hpcbal.errors import HpcbalError

    config = load_config(FILE, sets[1::2])
    if not isinstance(config, EnsembleConfig):
        return []
    try:
        with limited(TIME_LIMIT_S):
            build_operations([(step.name, step.args) for step in config.preprocessing])
            if config.data.dataset == "hpcbal.data:digits":
                source = open_source(config)
                StreamSpec.of_source(source, config.dataplane)
                source.sample(int(source.train_ids[0]), 0, training=True)
    except HpcbalError as error:
        return [f"open: {fault}" for fault in refusal(Answer(2, "", str(error)))]
    except (Exception, Hang) as error:
        return [f"open: {type(error).__name__}: {str(error)[:200]} {_place(error)}"]
    return []


def _place(error: BaseException) -> str:
    """The innermost frames of an exception."""
    frames = traceback.extract_tb(error.__traceback__)[-4:]
    return " < ".join(f"{Path(frame.filename).name}:{frame.lineno}" for frame in reversed(frames))


@contextlib.contextmanager
def _inside(folder: Path) -> Iterator[None]:
    """Make `folder` the current one; afterwards the import path is as it was."""
    before, path = Path.cwd(), list(sys.path)
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(before)
        sys.path[:] = path


@contextlib.contextmanager
def limited(limit_s: float, *, of_cpu: bool = True) -> Iterator[None]:
    """Raise `Hang` in what takes longer.

    Args:
        limit_s: seconds.
        of_cpu: whether CPU time counts, because wall time says little on a busy machine; False: wall time.
    """
    timer, number = (signal.ITIMER_PROF, signal.SIGPROF) if of_cpu else (signal.ITIMER_REAL, signal.SIGALRM)

    def stop(number: int, frame: FrameType | None) -> None:
        raise Hang(f"more than {limit_s:g} s{' of CPU time' if of_cpu else ''}")

    previous = signal.signal(number, stop)
    signal.setitimer(timer, limit_s)
    try:
        yield
    finally:
        signal.setitimer(timer, 0.0)
        signal.signal(number, previous)
