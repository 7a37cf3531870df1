"""How much training a committee needs with `prune: committee`, beside ASHA and beside no pruning.

    python bench/bench_committee.py --json committee.json

27 networks of random width, depth, dropout and learning rate on digits, and on 7,000 images of Fashion-MNIST
if Debian's package `dataset-fashion-mnist` is there; three seeds each. They are trained once by `hpcbal run`,
each at its own pace and to its end, and their predictions for all validation samples are recorded after every
epoch. The rules are replayed on these records by the simulator, with the state machine and the rules of a run
and the measured seconds of each network's epochs, on four slots. Networks that diverge do so under any rule,
and are left out. Rules see half of the validation samples. The committee is chosen greedily on that half,
from the best epoch of each network so far, and its negative log-likelihood is measured on the other half. The
goal is that of all networks, fully trained, plus 1 %.

- `committee_share`: slot-seconds after which the committee stays at the goal with `prune: committee`, over
  those without pruning; mean of the six cases (at most 0.5). `committee_over_asha`: over those of ASHA with
  its defaults (at most 0.8). A rule that ends above the goal is charged what it has spent, and then all that
  the run without pruning takes to the goal, because that has to be made after all. `missed`: such cases.
- `committee_over_best_asha`: over the best of six settings of ASHA, chosen for each case in hindsight.
- `share_seen`: as `committee_share`, but measured on the half that rules see, as the validation loss.
- `end_loss`: the committee's loss in the end over that without pruning.
- `replay_equals_run`: 1 if a real run with the rule, for one seed of each set, predicts and decides the same
  as the records: its epochs have the same predictions up to rounding, and the state machine, fed with
  the real run's events and the recorded predictions, stops the same networks at the same moments.
- `asha_agrees`: share of comparisons in which ASHA promotes the same networks as others, on the curves in
  bench/data/asha_promotions.json (of digits, recorded here): in the order of [ASHA] Alg. 2 with one slot,
  and rung by rung, side by side, as Syne Tune 0.10's promotion variant, whose answers are in the file, and
  are computed again if it can be imported (must be 1).
"""

from __future__ import annotations

import json
import math
import os
import statistics
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from support import asha_oracle
from support.figures import parser_of, write_figures
from support.starting import HERE, train
from workloads.committee import ALL_ITEMS, MAX_EPOCHS, NUM_SEEN, SETS, has_data, sweep

from hpcbal.cluster.layout import Cluster, Node
from hpcbal.config import EnsembleConfig, load_config
from hpcbal.config.scheduling import settings_of, specs_of
from hpcbal.control.ensemble import Ensemble
from hpcbal.control.progress import ScheduleSettings
from hpcbal.data.datasets.small_sets import DEBIAN_PATH
from hpcbal.ensembling.evidence import WatchedItems, decoded, encoded
from hpcbal.ensembling.selection import greedy_selection, log_loss_of_mean
from hpcbal.errors import ExitCode
from hpcbal.events.ensemble import EpochDone, Event, LeaveRound, Started
from hpcbal.events.members import DnnSpec, StopRule
from hpcbal.policies.pruning.committee import Committee
from hpcbal.policies.pruning.rules import Asha, PruneRule
from hpcbal.policies.rates import RateTable
from hpcbal.simulator.pass_model import PassModel
from hpcbal.simulator.run import simulate
from hpcbal.telemetry.ledger.codec import Entry
from hpcbal.telemetry.ledger.run import RunStartedLine

NUM_SLOTS = 4
NEAR = 1.01
ROUNDING = 2e-3
MIN_EPOCHS, TOLERANCE = 2, 0.005
ASHA_DEFAULT = (3, 1)
ASHA_TRIED = ((2, 1), (3, 1), (4, 1), (2, 2), (2, 3), (3, 2))
PROMOTIONS = HERE / "data" / "asha_promotions.json"
SHARE_ALLOWED, OVER_ASHA_ALLOWED = 0.5, 0.8

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Record:
    """The networks of a sweep after each of their epochs.

    Attributes:
        names: of the networks.
        evidence: their predictions for all validation items, as text, by epoch.
        losses: their validation loss, shape (networks, epochs).
        epoch_s: mean seconds of an epoch of each.
        seen: numbers of the items that rules see.
    """

    names: tuple[str, ...]
    evidence: tuple[tuple[str, ...], ...]
    losses: Array
    epoch_s: tuple[float, ...]
    seen: NDArray[np.int64]

    @classmethod
    def of(cls, ledger: Sequence[Entry], num_seen: int, seed: int) -> Record:
        """Make the record of a run in which no network was pruned, without those that have failed."""
        epochs: dict[str, list[EpochDone]] = {}
        for entry in ledger:
            if isinstance(entry.line, EpochDone):
                epochs.setdefault(entry.line.dnn_id, []).append(entry.line)
        names = tuple(sorted(name for name, lines in epochs.items() if len(lines) == MAX_EPOCHS))
        evidence = tuple(tuple(str(line.facts.evidence) for line in epochs[name]) for name in names)
        losses = np.array([[line.metrics["val_loss"] for line in epochs[name]] for name in names])
        epoch_s = tuple(statistics.median(line.seconds for line in epochs[name]) for name in names)
        num_items = len(decoded(evidence[0][0])[1])
        seen = WatchedItems.draw("classes", np.arange(num_items), 1, num_seen, seed).sample_ids
        return cls(names, evidence, losses, epoch_s, seen)

    @cached_property
    def rows(self) -> Array:
        """Probabilities of the right classes, shape (networks, epochs, items)."""
        return np.array([[decoded(text)[1] for text in each] for each in self.evidence])

    @cached_property
    def seen_evidence(self) -> tuple[tuple[str, ...], ...]:
        """The evidence for the items that rules see."""
        return tuple(tuple(encoded(row[self.seen], "classes") for row in each) for each in self.rows)

    @cached_property
    def unseen(self) -> NDArray[np.int64]:
        return np.setdiff1d(np.arange(self.rows.shape[2]), self.seen)

    def losses_of_committee(self, epochs: Mapping[int, int]) -> tuple[float, float]:
        """Return the loss of the committee on what rules see, and on what they do not.

        Args:
            epochs: of each network that has trained, by its number.
        """
        best = {i: int(self.losses[i, :number].argmin()) for i, number in epochs.items()}
        rows = np.array([self.rows[i, epoch] for i, epoch in best.items()])
        chosen = greedy_selection(rows[:, self.seen], log_loss_of_mean, 50)
        mean = np.array(chosen.weights) @ rows[:, self.unseen]
        return chosen.loss, float(log_loss_of_mean(mean))


@dataclass(frozen=True, slots=True)
class Course:
    """A replayed run: slot-seconds, and both losses of the committee, after each epoch of any network."""

    spent_s: tuple[float, ...]
    seen: tuple[float, ...]
    unseen: tuple[float, ...]
    num_epochs: int

    def reaches(self, goal: float, losses: Sequence[float]) -> float | None:
        """Return the slot-seconds after which the loss stays at the goal; None if it ends above it."""
        above = [index for index, loss in enumerate(losses) if loss > goal]
        first = above[-1] + 1 if above else 0
        return self.spent_s[first] if first < len(losses) else None


def replay(record: Record, rule: PruneRule | None) -> Course:
    """Replay a rule in the simulator, with the networks' own seconds."""
    number = {name: i for i, name in enumerate(record.names)}
    specs = [DnnSpec(n, 32, StopRule("val_loss", "min", max_epochs=MAX_EPOCHS)) for n in record.names]
    rates = RateTable({n: {1: 1000.0 / record.epoch_s[i]} for n, i in number.items()}, NUM_SLOTS)
    run = simulate(
        specs,
        Cluster((Node("node0", NUM_SLOTS),)),
        ScheduleSettings(1000, paradigm="independent", profile=False, prune=rule),
        rates,
        PassModel(1000),
        curves=lambda name, epoch: float(record.losses[number[name], epoch - 1]),
        evidence=lambda name, epoch: record.seen_evidence[number[name]][epoch - 1],
        keep_events=True,
    )
    epochs: dict[int, int] = {}
    spent_s, losses = [0.0], []
    for timed in run.events:
        if isinstance(timed.event, EpochDone):
            index = number[timed.event.dnn_id]
            epochs[index] = epochs.get(index, 0) + 1
            spent_s.append(spent_s[-1] + record.epoch_s[index])
            losses.append(record.losses_of_committee(epochs))
    seen, unseen = zip(*losses, strict=True)
    return Course(tuple(spent_s[1:]), seen, unseen, len(losses))


def charged(course: Course, whole: Course, of: Callable[[Course], Sequence[float]]) -> tuple[float, bool]:
    """Return the slot-seconds to the goal, and whether the rule has reached it; see above."""
    goal = NEAR * of(whole)[-1]
    all_s = whole.reaches(goal, of(whole))
    assert all_s is not None
    found = course.reaches(goal, of(course))
    return (course.spent_s[-1] + all_s, False) if found is None else (found, True)


def compare(record: Record) -> dict[str, float]:
    """Return the figures of one case."""
    whole = replay(record, None)
    ours = replay(record, Committee(MIN_EPOCHS, TOLERANCE))
    asha = {setting: replay(record, Asha(*setting)) for setting in ASHA_TRIED}

    def unseen(course: Course) -> Sequence[float]:
        return course.unseen

    def seen(course: Course) -> Sequence[float]:
        return course.seen

    all_s, _ = charged(whole, whole, unseen)
    own_s, is_reached = charged(ours, whole, unseen)
    asha_s = {setting: charged(course, whole, unseen) for setting, course in asha.items()}
    seen_s, is_seen = charged(ours, whole, seen)
    return {
        "share": own_s / all_s,
        "over_asha": own_s / asha_s[ASHA_DEFAULT][0],
        "over_best_asha": own_s / min(each for each, _ in asha_s.values()),
        "share_seen": seen_s / charged(whole, whole, seen)[0],
        "reached": float(is_reached),
        "reached_seen": float(is_seen),
        "asha_reached": float(asha_s[ASHA_DEFAULT][1]),
        "best_asha_reached": float(any(reached for _, reached in asha_s.values())),
        "end_loss": ours.unseen[-1] / whole.unseen[-1],
        "asha_end_loss": asha[ASHA_DEFAULT].unseen[-1] / whole.unseen[-1],
        "spent": ours.spent_s[-1] / whole.spent_s[-1],
        "asha_spent": asha[ASHA_DEFAULT].spent_s[-1] / whole.spent_s[-1],
    }


# ---- a real run with the rule ------------------------------------------------------------------


def equals_run(config: Mapping[str, Any], path: Path, ledger: Sequence[Entry], record: Record) -> bool:
    """Return whether a real run with the rule predicts and decides as the record does."""
    number = {name: i for i, name in enumerate(record.names)}
    loaded = load_config(path)
    assert isinstance(loaded, EnsembleConfig)
    started = next(e.line for e in ledger if isinstance(e.line, RunStartedLine))
    cluster = Cluster(tuple(Node(node.host, node.num_slots) for node in started.nodes))
    ensemble = Ensemble(
        specs_of(loaded),
        cluster,
        settings_of(loaded, num_positions=1),
        RateTable({}, cluster.max_slots_per_node),
    )
    ensemble.handle(Started())
    epochs: dict[str, int] = {}
    decided: list[LeaveRound] = []
    for entry in ledger:
        line = entry.line
        if isinstance(line, EpochDone) and line.dnn_id in number:
            index, epoch = number[line.dnn_id], epochs.get(line.dnn_id, 0)
            epochs[line.dnn_id] = epoch + 1
            own, recorded = decoded(str(line.facts.evidence))[1], record.rows[index, epoch, record.seen]
            if not np.allclose(own, recorded, rtol=ROUNDING):  # other samples were beside them in a batch
                return False
            if line.metrics["val_loss"] != record.losses[index, epoch]:
                return False
        if isinstance(line, Event):
            decided += [i for i in ensemble.handle(line) if isinstance(i, LeaveRound)]
    return decided == [entry.line for entry in ledger if isinstance(entry.line, LeaveRound)]


# ---- ASHA as others do it ------------------------------------------------------------------------


def jobs_of_machine(curves: asha_oracle.Curves, eta: int, first: int, num_slots: int) -> asha_oracle.Jobs:
    """Return what the state machine trains: configuration and the rung that it has then reached, in order."""
    names = [f"c{i:03d}" for i in range(len(curves))]
    max_epochs = len(curves[0])
    number = {name: i for i, name in enumerate(names)}
    run = simulate(
        [DnnSpec(name, 32, StopRule(max_epochs=max_epochs)) for name in names],
        Cluster((Node("node0", num_slots),)),
        ScheduleSettings(1000, paradigm="independent", profile=False, prune=Asha(eta, first)),
        RateTable({name: {1: 1000.0} for name in names}, num_slots),
        PassModel(1000),
        curves=lambda name, epoch: curves[number[name]][epoch - 1],
        keep_events=True,
    )
    ends = {*asha_oracle.rungs_of(eta, first, max_epochs), max_epochs}
    epochs = [0] * len(names)
    jobs: asha_oracle.Jobs = []
    for timed in run.events:
        if isinstance(timed.event, EpochDone):
            index = number[timed.event.dnn_id]
            epochs[index] += 1
            if epochs[index] in ends:
                jobs.append((index, epochs[index]))
    return jobs


def asha_agreements(stored: Sequence[Mapping[str, Any]]) -> list[bool]:
    """Return whether ASHA agrees, by comparison."""
    found = []
    for case in stored:
        curves, eta, first = case["curves"], int(case["eta"]), int(case["first"])
        jobs = jobs_of_machine(curves, eta, first, num_slots=1)
        rungs = asha_oracle.rungs_of(eta, first, len(curves[0]))
        order = [index for index, epoch in jobs if epoch == rungs[0]]  # in which they come
        expected = asha_oracle.paper([curves[i] for i in order], eta, first)
        found.append(jobs[: len(expected)] == [(order[i], epoch) for i, epoch in expected])
        jobs = jobs_of_machine(curves, eta, first, num_slots=len(curves))
        ends = [*rungs, len(curves[0])]
        passed = [{i for i, epoch in jobs if epoch == end} for end in ends[1:]]
        theirs = [set(each) for each in case["syne_tune"]]
        again = asha_oracle.syne_tune(curves, eta, first)
        if again is not None and again != theirs:
            raise SystemExit(
                f"{PROMOTIONS}: Syne Tune promotes others now; write the file again (--promotions)"
            )
        found += [own == other for own, other in zip(passed, theirs, strict=True)]
        found += [
            own == other
            for own, other in zip(passed, asha_oracle.side_by_side(curves, eta, first), strict=True)
        ]
    return found


def write_promotions(records: Sequence[Record]) -> None:
    """Write curves of these records, and what Syne Tune promotes on them; needs Syne Tune 0.10."""
    cases = []
    for record in records:
        curves = np.round(np.maximum.accumulate(-record.losses, axis=1), 5).tolist()
        theirs = asha_oracle.syne_tune(curves, *ASHA_DEFAULT)
        if theirs is None:
            raise SystemExit("--promotions: needs `pip install syne-tune==0.10.0`")
        eta, first = ASHA_DEFAULT
        cases.append(
            {"eta": eta, "first": first, "curves": curves, "syne_tune": [sorted(each) for each in theirs]}
        )
    PROMOTIONS.write_text(json.dumps(cases) + "\n", encoding="utf-8")


# ---- everything --------------------------------------------------------------------------------------


def run_sweep(
    name: str, seed: int, prune: dict[str, Any], scratch: Path, fashion: Path
) -> tuple[Any, Path, list[Entry]]:
    """Do a run and return its configuration, its file, and its ledger."""
    folder = scratch / f"{name}-{seed}-{prune['samples']}"
    folder.mkdir(parents=True, exist_ok=True)
    config = sweep(name, seed, prune, folder / "out", fashion)
    return config, folder / "run.yaml", train(config, folder, codes=(ExitCode.DONE, ExitCode.FAILED_DNNS))


def measure(name: str, seeds: Sequence[int], scratch: Path, fashion: Path) -> tuple[list[Record], float]:
    """Record the sweeps of a set, and return whether a real run of the first equals its replay."""
    records = []
    no_rule = {"rule": "committee", "min_epochs": MAX_EPOCHS, "samples": ALL_ITEMS}
    for seed in seeds:
        _, _, ledger = run_sweep(name, seed, no_rule, scratch, fashion)
        records.append(Record.of(ledger, NUM_SEEN[name], seed))
    rule = {"rule": "committee", "min_epochs": MIN_EPOCHS, "tolerance": TOLERANCE, "samples": NUM_SEEN[name]}
    config, path, ledger = run_sweep(name, seeds[0], rule, scratch, fashion)
    return records, float(equals_run(config, path, ledger, records[0]))


def mean(values: Sequence[float]) -> float:
    return statistics.fmean(values) if values else math.nan


def main(argv: Sequence[str] | None = None) -> None:
    parser = parser_of(__doc__)
    parser.add_argument("--sets", nargs="+", choices=SETS, default=list(SETS), metavar="SET")
    parser.add_argument("--seeds", nargs="+", type=int, default=[1, 2, 3], metavar="N")
    parser.add_argument("--fashion", type=Path, default=Path(DEBIAN_PATH), metavar="DIR")
    parser.add_argument(
        "--promotions", action="store_true", help="write bench/data/asha_promotions.json again"
    )
    args = parser.parse_args(argv)
    load_before = os.getloadavg()[0]
    found: dict[str, Any] = {"missed": [], "left_out": []}
    cases: dict[str, list[dict[str, float]]] = {}
    equal = []
    with tempfile.TemporaryDirectory(prefix="bench_committee_") as scratch:
        for name in args.sets:
            if not has_data(name, args.fashion):
                found["left_out"].append(name)
                print(
                    f"{name} is left out: no images in {args.fashion}; apt-get install dataset-fashion-mnist"
                )
                continue
            records, equals = measure(name, args.seeds, Path(scratch), args.fashion)
            equal.append(equals)
            if args.promotions and name == "digits":
                write_promotions(records)
            cases[name] = [compare(record) for record in records]
            for seed, case in zip(args.seeds, cases[name], strict=True):
                shown = " ".join(f"{key} {value:.3f}" for key, value in case.items())
                print(f"{name} {seed}: {shown}", flush=True)
                if not case["reached"]:
                    found["missed"].append(f"{name} {seed}")
    every = [case for own in cases.values() for case in own]
    found["committee_share"] = mean([case["share"] for case in every])
    found["committee_over_asha"] = mean([case["over_asha"] for case in every])
    found["committee_over_best_asha"] = mean([case["over_best_asha"] for case in every])
    found["share_seen"] = mean([case["share_seen"] for case in every])
    found["end_loss"] = mean([case["end_loss"] for case in every])
    for name, own in cases.items():
        found[f"committee_share_{name}"] = mean([case["share"] for case in own])
        found[f"committee_over_asha_{name}"] = mean([case["over_asha"] for case in own])
    found["replay_equals_run"] = mean(equal)
    agreements = asha_agreements(json.loads(PROMOTIONS.read_text(encoding="utf-8")))
    found["asha_agrees"] = mean([float(each) for each in agreements])
    print(
        f"slot-seconds to the goal, over no pruning: {found['committee_share']:.3f} (<= {SHARE_ALLOWED:g}), "
        f"over ASHA: {found['committee_over_asha']:.3f} (<= {OVER_ASHA_ALLOWED:g}), over the best of "
        f"{len(ASHA_TRIED)} ASHAs: {found['committee_over_best_asha']:.3f}"
    )
    print(f"missed by the committee: {', '.join(found['missed']) or 'never'}")
    print(
        f"a real run equals its replay: {found['replay_equals_run']:g} (1); ASHA agrees: "
        f"{found['asha_agrees']:g} (1), {len(agreements)} comparisons"
    )
    write_figures(args.json, {**found, "cases": cases, "load_before": load_before})


if __name__ == "__main__":
    main()
