"""Kill runs at random moments, resume them, and compare the end with an undisturbed run.

    python bench/soak_kills.py --json out.json

Each of 40 runs trains a small ensemble: one of five paradigms, a balanced group, or partitioned data on
emulated accelerators, or networks of Keras or PyTorch with dropout and batch normalisation on cores. One to
three of its starts get a signal (KILL, TERM or INT) at a random moment: to a rank, to mpirun or to `hpcbal
run`, also while these start or save. Then the same command runs to the end.

The JSON holds one flat object. `kills_survived`: share of the runs whose weights are bit-equal to those of an
undisturbed run, and whose ledgers add up to one clean run; wanted: 1. `unexplained_ends`: number of disturbed
starts with a wrong exit code, a traceback, no reason on stderr, or processes that stay; wanted: 0. Signals
and moments follow from the seed; how far a run is by then also depends on the machine. Takes 20 to 40 minutes
on two cores.
"""

from __future__ import annotations

import json
import random
import shutil
import signal
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import yaml
from soak.cases import CASES, NUM_RANKS, OF_SPEEDS, PROFILE
from soak.disturbing import MPIRUN, STARTER, Disturbance, disturbed, undisturbed, unexplained
from soak.outcome import Outcome, difference, ledger_fault, outcome_of
from support.figures import parser_of, write_figures

from hpcbal.errors import HpcbalError

SIGNALS = (signal.SIGKILL, signal.SIGTERM, signal.SIGINT)
MAX_SIGNALS = 3
START_S = 2.5
"""Signals that come while a run starts do so within this time after their target has started."""

SAVING_S = 0.02
"""Signals that come while a file is saved and renamed do so within this time after it is first seen."""


def disturbances(seed: int, run: int) -> list[Disturbance]:
    """One to three disturbances of a run; a third of the signals comes while it starts, and two ninths
    while a file is saved."""
    rng = random.Random(f"{seed}/{run}")
    return [_draw(rng) for _ in range(rng.randint(1, MAX_SIGNALS))]


def _draw(rng: random.Random) -> Disturbance:
    kind = rng.choice((STARTER, MPIRUN, "rank"))
    target = f"rank {rng.randrange(NUM_RANKS)}" if kind == "rank" else kind
    number = rng.choice(SIGNALS)
    if rng.random() < 1 / 3:
        return Disturbance(target, number, None, rng.uniform(0.0, START_S))
    num_epochs = rng.randint(0, 2)
    if rng.random() < 1 / 3:
        return Disturbance(target, number, num_epochs, rng.uniform(0.0, SAVING_S), while_saving=True)
    return Disturbance(target, number, num_epochs, rng.uniform(0.0, 0.3))


def prepare(folder: Path, case: str) -> None:
    """Make a folder with the configuration of a case."""
    (folder / "tmp").mkdir(parents=True)
    (folder / "run.yaml").write_text(yaml.safe_dump(CASES[case](), sort_keys=False), encoding="utf-8")
    (folder / "rates.json").write_text(json.dumps(PROFILE), encoding="utf-8")


def clean_outcome(folder: Path, case: str) -> Outcome:
    """The outcome of a run that nobody disturbs.

    Raises:
        SystemExit: if it fails.
    """
    prepare(folder, case)
    end = undisturbed(folder)
    if end.code != 0:
        raise SystemExit(f"the undisturbed run of {case} ended with code {end.code}:\n{end.out}{end.err}")
    return outcome_of(folder / "out", OF_SPEEDS.get(case, ()))


def disturbed_run(
    folder: Path, case: str, planned: list[Disturbance], wanted: Outcome
) -> Iterator[tuple[str, str | None]]:
    """Disturb a run, then let the same command end it.

    Yields: what was done, with what is wrong about it; the last item is about the whole run.
    """
    prepare(folder, case)
    for disturbance in planned:
        end = disturbed(folder, disturbance)
        fault = unexplained(disturbance, end)
        text = f"{disturbance}: exit code {end.code}"
        yield text, None if fault is None else f"{fault}\n{end.out[-500:]}{end.err[-2000:]}"
    end = undisturbed(folder)
    fault = None
    if end.code != 0:
        fault = f"the same command ended with code {end.code}:\n{end.out[-500:]}{end.err[-2000:]}"
    else:
        try:
            ended = outcome_of(folder / "out", OF_SPEEDS.get(case, ()))
            fault = ledger_fault(folder / "out") or difference(ended, wanted)
        except HpcbalError as error:
            fault = str(error)
    yield "to the end", fault


def main() -> int:
    """Disturb and print; the exit code is 0 if every run survived and every end was explained."""
    parser = parser_of(__doc__)
    parser.add_argument("--runs", type=int, default=40, help="number of runs (default: 40)")
    parser.add_argument("--first", type=int, default=0, help="number of the first run (default: 0)")
    parser.add_argument("--seed", type=int, default=0, help="seed of signals and moments (default: 0)")
    parser.add_argument("--cases", nargs="+", choices=list(CASES), default=list(CASES), help="only these")
    parser.add_argument("--folder", type=Path, help="where runs that did not survive are kept")
    args = parser.parse_args()
    clean: dict[str, Outcome] = {}
    num_survived = num_unexplained = num_signals = 0
    with tempfile.TemporaryDirectory(prefix="soak-") as temporary:
        for run in range(args.first, args.first + args.runs):
            case = args.cases[run % len(args.cases)]
            if case not in clean:
                clean[case] = clean_outcome(Path(temporary, f"clean-{case}"), case)
            planned = disturbances(args.seed, run)
            num_signals += len(planned)
            folder = Path(temporary, f"run-{run}")
            faults = []
            for text, fault in disturbed_run(folder, case, planned, clean[case]):
                print(f"run {run} ({case}): {text}: {'FAULT: ' + fault if fault else 'ok'}", flush=True)
                faults.append(fault)
            if args.folder is not None and any(faults):
                shutil.copytree(folder, args.folder / folder.name, dirs_exist_ok=True)
            num_survived += faults.pop() is None
            num_unexplained += sum(fault is not None for fault in faults)
            shutil.rmtree(folder)
    figures = {"kills_survived": num_survived / args.runs, "unexplained_ends": num_unexplained}
    print(f"{figures} over {args.runs} runs and {num_signals} signals")
    facts = {"num_runs": args.runs, "num_signals": num_signals, "seed": args.seed}
    write_figures(args.json, {**figures, **facts})
    return int(num_survived < args.runs or num_unexplained > 0)


if __name__ == "__main__":
    sys.exit(main())
