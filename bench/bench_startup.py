"""Start-up time of the light verbs, compared with Python itself and with a limit.

    python bench/bench_startup.py --repeat 5 --json startup.json

The JSON holds the minimum wall time and the minimum CPU time of each command, such as `validate_s` and
`validate_cpu_s`; on a busy machine only CPU times are comparable. Modules are compiled once, into a directory
of this program, as Python does by default: a first start of each command is not counted. `--imports VERB`
shows instead which modules take the most time when a verb starts.
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
from pathlib import Path

from support.provenance import provenance

LIMIT_S = 0.25
CONFIG = """\
name: startup
backend: {name: emulated, rates: {a: {1: 100.0}, b: {1: 60.0, 2: 110.0}, c: {1: 20.0}, d: {1: 10.0}}}
slots: {per_node: 4}
defaults:
  optimizer: {name: sgd, learning_rate: 0.1}
  batch_size: 32
  stop: {max_epochs: 3}
dnns:
  - {name: a, model: "hpcbal.models:softmax"}
  - {name: b, model: "hpcbal.models:softmax"}
  - {name: c, model: "hpcbal.models:softmax"}
  - {name: d, model: "hpcbal.models:softmax"}
"""


def commands(config: Path) -> dict[str, list[str]]:
    """Command lines by the key under which their seconds are reported."""
    hpcbal = [sys.executable, "-m", "hpcbal"]
    return {
        "python_s": [sys.executable, "-c", "pass"],
        "help_s": [*hpcbal, "--help"],
        "validate_s": [*hpcbal, "validate", str(config)],
        "plan_s": [*hpcbal, "plan", str(config)],
    }


def best_seconds(command: Sequence[str], environment: dict[str, str], repeat: int) -> tuple[float, float]:
    """Minimum wall time and minimum CPU time of `repeat` starts, after one that compiles the modules.

    Raises:
        subprocess.CalledProcessError: the command failed.
    """
    subprocess.run(command, env=environment, check=True, capture_output=True)
    wall_s, cpu_s = float("inf"), float("inf")
    for _ in range(repeat):
        used_s, start = cpu_of_children_s(), time.perf_counter()
        subprocess.run(command, env=environment, check=True, capture_output=True)
        wall_s = min(wall_s, time.perf_counter() - start)
        cpu_s = min(cpu_s, cpu_of_children_s() - used_s)
    return wall_s, cpu_s


def cpu_of_children_s() -> float:
    """CPU seconds of all ended child processes."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def slowest_imports(
    command: Sequence[str], environment: dict[str, str], count: int
) -> list[tuple[float, str]]:
    """(cumulative seconds, module) of the slowest imports of a command, largest first."""
    subprocess.run(command, env=environment, check=True, capture_output=True)  # compiles the modules
    traced = [command[0], "-X", "importtime", *command[1:]]
    trace = subprocess.run(traced, env=environment, check=True, capture_output=True, text=True).stderr
    rows: list[tuple[float, str]] = []
    for line in trace.splitlines():
        parts = line.removeprefix("import time:").split("|")
        if line.startswith("import time:") and parts[1].strip().isdigit():
            rows.append((int(parts[1]) / 1e6, parts[2].strip()))
    return sorted(rows, reverse=True)[:count]


def main() -> int:
    """Measure and print; the exit code is 0 even beyond the limit."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument(
        "--repeat", type=int, default=5, help="starts per command; the minimum counts (default: 5)"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures as one flat object")
    parser.add_argument(
        "--imports", choices=("help", "validate", "plan"), help="show this verb's slowest imports"
    )
    args = parser.parse_args()
    root = str(Path(__file__).resolve().parent.parent)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([root, os.environ.get("PYTHONPATH", "")])}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    with tempfile.TemporaryDirectory() as directory:
        environment["PYTHONPYCACHEPREFIX"] = str(Path(directory) / "bytecode")
        config = Path(directory) / "startup.yaml"
        config.write_text(CONFIG, encoding="utf-8")
        lines = commands(config)
        if args.imports:
            for seconds, module in slowest_imports(lines[f"{args.imports}_s"], environment, 25):
                print(f"{seconds:8.3f}  {module}")
            return 0
        figures = {key: best_seconds(command, environment, args.repeat) for key, command in lines.items()}
    print(f"{'what':<12} {'seconds':>8} {'CPU s':>8} {'x python':>9} {'of limit':>9}")
    for key, (seconds, cpu_s) in figures.items():
        ratio, share = seconds / figures["python_s"][0], seconds / LIMIT_S
        print(f"{key:<12} {seconds:8.3f} {cpu_s:8.3f} {ratio:9.1f} {share:9.2f}")
    if args.json:
        flat = {key: seconds for key, (seconds, _) in figures.items()}
        flat |= {key.replace("_s", "_cpu_s"): cpu_s for key, (_, cpu_s) in figures.items()}
        facts = {"limit_s": LIMIT_S, **provenance()}
        args.json.write_text(json.dumps({**flat, **facts}, indent=2) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
