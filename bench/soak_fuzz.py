"""Feed `hpcbal validate` with changed configurations: none may give a traceback, hang, or pass unusable.

    python bench/soak_fuzz.py --json fuzz.json                # 10,000 changes, about 30 minutes
    python bench/soak_fuzz.py --first 4711 --changes 1        # one of them again, with what is wrong

Every change is tried in process (bench/support/config_trial.py). Some are also validated by a program of
their own, and some of those that are accepted are run, on the emulated backend. The JSON holds `fuzz_clean`,
the share of changes without a fault; every fault is printed with the number of its change.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from support.config_changes import change
from support.config_trial import FILE, Answer, faults_of, refusal, try_change
from support.figures import parser_of, write_figures
from support.starting import environment
from support.strange_data import try_data

MEMORY_BYTES = 6 << 30
PER_CHILD = 500
"""Changes that one process tries; a crash, or a lack of memory, ends only this process."""
CHILD_TIMEOUT_S = 1800.0
FRESH_EVERY, RUN_EVERY, DATA_EVERY = 100, 15, 50
RUN_LIMIT_S, PREDICTED_S = 600.0, 20.0
"""A busy machine takes many times as long as predicted."""
STARTS = {
    "as it is": 'exec "$@"',
    "another backend": 'KERAS_BACKEND=jax exec "$@"',
    "no HOME": 'unset HOME; exec "$@"',
    "a broken keras.json": 'mkdir -p h/.keras; echo "{" > h/.keras/keras.json; HOME=$PWD/h exec "$@"',
    "closed output": 'exec "$@" >&-',
    "closed input": 'exec "$@" <&-',
    "a full output": 'exec "$@" > /dev/full',
    "a module named json": 'echo "import nothing" > json.py; exec "$@"',
    "modules named keras and numpy": 'mkdir keras; echo 1/0 > numpy.py; exec "$@"',
    "ASCII": 'LC_ALL=C PYTHONUTF8=0 PYTHONIOENCODING=ascii exec "$@"',
    "an empty PATH": 'PATH= exec "$@"',
}
"""How a program of its own is started: commands of a shell, by what is strange about them."""
CODES_OF_A_RUN = (0, 2, 3)
"""Done, refused, or with failed DNNs: a huge learning rate makes NaN."""


@dataclass
class Findings:
    """The findings of the changes so far."""

    num_changes: int = 0
    num_accepted: int = 0
    num_fresh: int = 0
    num_runs: int = 0
    num_data: int = 0
    faults: dict[int, list[str]] = field(default_factory=dict)

    def add(self, index: int, faults: list[str]) -> None:
        if faults:
            self.faults.setdefault(index, []).extend(faults)


def try_some(first: int, count: int, seed: int, progress: Path) -> None:
    """Be the child: try changes and write a line for each, before and after."""
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    with progress.open("a", encoding="utf-8") as file:
        for index in range(first, first + count):
            print(json.dumps({"begins": index}), file=file, flush=True)
            with tempfile.TemporaryDirectory() as folder:
                accepted, faults = try_change(change(index, seed), Path(folder))
            print(json.dumps({"index": index, "accepted": accepted, "faults": faults}), file=file, flush=True)


def try_in_child(first: int, count: int, seed: int, findings: Findings) -> list[int]:
    """Try changes in a process of their own; returns those that were accepted."""
    accepted: list[int] = []
    with tempfile.TemporaryDirectory() as folder:
        progress = Path(folder) / "progress.jsonl"
        while count > 0:
            command = [sys.executable, __file__, "--child", str(progress), "--seed", str(seed)]
            command += ["--first", str(first), "--changes", str(count)]
            try:
                done = subprocess.run(command, env=environment(), timeout=CHILD_TIMEOUT_S, check=False)
                end = f"the process ends with {done.returncode}"
            except subprocess.TimeoutExpired:
                end = f"the process takes more than {CHILD_TIMEOUT_S:g} s"
            lines = [json.loads(line) for line in progress.read_text(encoding="utf-8").splitlines()]
            progress.unlink()
            for line in lines:
                if "index" in line:
                    findings.num_changes += 1
                    findings.add(line["index"], line["faults"])
                    accepted += [line["index"]] if line["accepted"] else []
            if not lines:
                raise SystemExit(f"{end} before the first change")
            last = lines[-1]
            if "begins" not in last:
                break
            findings.num_changes += 1
            findings.add(last["begins"], [end])
            count -= last["begins"] + 1 - first
            first = last["begins"] + 1
    findings.num_accepted += len(accepted)
    return accepted


def try_fresh(index: int, seed: int, findings: Findings) -> None:
    """Validate one change as a user does, in a process of its own."""
    given, how = change(index, seed), list(STARTS)[index // FRESH_EVERY % len(STARTS)]
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / FILE).write_bytes(given.content)
        sets = [part for override in given.overrides for part in ("--set", override)]
        answer = _program(["validate", FILE, *sets], Path(folder), RUN_LIMIT_S, how)
    findings.num_fresh += 1
    findings.add(index, [f"fresh validate with {how}: {fault}" for fault in faults_of(answer)])


def try_some_data(indices: Sequence[int], seed: int, findings: Findings) -> None:
    """Open datasets with strange labels or folders."""
    for index in indices:
        with tempfile.TemporaryDirectory() as folder:
            what, faults = try_data(index, seed, Path(folder))
        findings.num_data += 1
        findings.add(index, [f"{what}: {fault}" for fault in faults])


def try_run(index: int, seed: int, findings: Findings) -> None:
    """Run an accepted change, if it is for the emulated backend and short."""
    given = change(index, seed)
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as name:
        folder = Path(name)
        (folder / FILE).write_bytes(given.content)
        sets = [part for override in given.overrides for part in ("--set", override)]
        plan = _program(["plan", FILE, *sets, "--json"], folder, RUN_LIMIT_S)
        config = json.loads(_program(["validate", FILE, *sets, "--json"], folder, RUN_LIMIT_S).out)["config"]
        if plan.code != 0 or config["backend"]["name"] != "emulated":
            return
        forecast, ranks = json.loads(plan.out)["forecast"], json.loads(plan.out)["ranks"]["total"]
        if forecast is None or forecast["wall_time_s"] > PREDICTED_S or ranks > 8:
            return
        answer = _program(["run", FILE, *sets, "--output", str(folder / "out")], folder, RUN_LIMIT_S)
        findings.num_runs += 1
        if answer.code in CODES_OF_A_RUN:
            answer = Answer(2 if answer.code == 2 else 0, answer.out, answer.err, answer.traceback)
        findings.add(index, [f"run: {fault}" for fault in (*faults_of(answer), *refusal(answer))])


def _program(arguments: list[str], folder: Path, limit_s: float, how: str = "as it is") -> Answer:
    command = ["/bin/sh", "-c", STARTS[how], "sh", sys.executable, "-m", "hpcbal", *arguments]
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, cwd=folder, env=environment(), **pipes) as process:
        try:
            out, err = process.communicate(timeout=limit_s)
        except subprocess.TimeoutExpired:
            process.terminate()  # a run ends its ranks then
            _, err = process.communicate()
            return Answer(1, "", err, f"longer than {limit_s:g} s")
    return Answer(process.returncode, out, err)


def main() -> int:
    """Try the changes and print what is wrong with each; the exit code is 0 only if nothing is."""
    parser = parser_of(__doc__)
    parser.add_argument("--changes", type=int, default=10_000, help="number of changes (default: 10,000)")
    parser.add_argument("--first", type=int, default=0, help="number of the first change (default: 0)")
    parser.add_argument("--seed", type=int, default=0, help="another seed makes other changes (default: 0)")
    parser.add_argument("--child", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child is not None:
        try_some(args.first, args.changes, args.seed, args.child)
        return 0
    started_s, findings = time.monotonic(), Findings()
    for first in range(args.first, args.first + args.changes, PER_CHILD):
        count = min(PER_CHILD, args.first + args.changes - first)
        accepted = try_in_child(first, count, args.seed, findings)
        for index in range(first, first + count, FRESH_EVERY):
            try_fresh(index, args.seed, findings)
        try_some_data(range(first, first + count, DATA_EVERY), args.seed, findings)
        good = [index for index in accepted if index not in findings.faults]
        emulated = [index for index in good if b"name: emulated" in change(index, args.seed).content]
        for index in emulated[::RUN_EVERY]:
            try_run(index, args.seed, findings)
        print(
            f"{findings.num_changes} changes, {findings.num_accepted} accepted, {findings.num_runs} run, "
            f"{len(findings.faults)} with faults, {time.monotonic() - started_s:.0f} s",
            flush=True,
        )
        for index, faults in findings.faults.items():
            if index >= first:
                given = change(index, args.seed)
                print(f"  {index} ({given.base}: {given.what[:200]!r})")
                print("".join(f"    {fault!r}\n" for fault in faults), end="", flush=True)
    clean = 1.0 - len(findings.faults) / findings.num_changes
    print(f"fuzz_clean {clean:.4f}")
    counts = {key: value for key, value in asdict(findings).items() if key != "faults"}
    write_figures(args.json, {"fuzz_clean": clean, **counts, "seed": args.seed})
    return int(bool(findings.faults))


if __name__ == "__main__":
    os.nice(5)
    sys.exit(main())
