"""Read the ledger and checkpoints of earlier starts; the state machine resumes from their state."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path

from hpcbal.checkpoint.best import CLASSES, EPOCH_FACTS
from hpcbal.checkpoint.state import TrainingState
from hpcbal.checkpoint.writer import CURRENT
from hpcbal.cluster.layout import Cluster, Node
from hpcbal.control.progress import DnnProgress, ResumeState, evaluate
from hpcbal.control.pruning import without
from hpcbal.control.rounds import is_same, is_short, slots_of
from hpcbal.control.states import TERMINAL, DnnState
from hpcbal.control.stopping import STOPPED_BY_USER
from hpcbal.errors import CheckpointError, DataError
from hpcbal.events.ensemble import (
    CheckpointWritten,
    DnnFailed,
    EpochDone,
    GroupLeft,
    LeaveOut,
    LeaveRound,
    NextPass,
    PreprocessingMeasured,
    RoundPlan,
    ScheduleChosen,
    StartGroup,
    StartRound,
    StopStream,
)
from hpcbal.events.history import NOTHING_MEASURED, EpochFacts, EpochRecord
from hpcbal.events.line import Line
from hpcbal.events.members import DnnSpec
from hpcbal.runtime.resuming.kept_best import SavedWeights, changed_files, recover_dnn
from hpcbal.telemetry.files.run_directory import RunDirectory
from hpcbal.telemetry.ledger.codec import facts_of
from hpcbal.telemetry.ledger.dnn_lines import (
    BadSampleLine,
    BestKeptLine,
    DnnDoneLine,
    DnnPrunedLine,
    DnnRetriedLine,
    DnnStoppedLine,
    InitialWeightsLine,
)
from hpcbal.telemetry.ledger.run import RunStartedLine

NUM_READERS = 8
"""Number of checkpoints to check at the same time; large ones take seconds each."""


@dataclass
class Account:
    """The cost of one DNN so far, over all starts."""

    wall_time_s: float = 0.0
    slot_seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class Earlier:
    """The past of a run.

    Attributes:
        resume: the state for the state machine.
        accounts: the cost of each DNN, by DNN.
        warnings: what was wrong with the files, and what is used instead.
        fingerprints: fingerprint of the data that each checkpoint was trained on, by DNN.
        retried: DNNs that had failed and get another try.
        stopped: DNNs that the user has asked to stop, and that no line of the ledger calls stopped yet.
        bad_samples: ids of samples that could not be used.
        saved: the epochs whose weights are on disk, by DNN.
        other_best: DNNs whose best weights are of another epoch than the ledger says.
        unrecorded: epochs in checkpoints that the ledger lacks: rank 0 was killed before it could write them.
        passes: measurements of the passes in each checkpoint, by DNN and pass.
        class_names: names of the classes that each checkpoint was trained on, by DNN; empty without names.
    """

    resume: ResumeState
    accounts: Mapping[str, Account] = field(default_factory=dict)
    warnings: Sequence[str] = ()
    fingerprints: Mapping[str, str] = field(default_factory=dict)
    retried: Sequence[str] = ()
    stopped: Sequence[str] = ()
    bad_samples: Collection[int] = ()
    saved: Mapping[str, SavedWeights] = field(default_factory=dict)
    other_best: Sequence[str] = ()
    unrecorded: Sequence[EpochDone] = ()
    passes: Mapping[str, Mapping[int, EpochFacts]] = field(default_factory=dict)
    class_names: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


def read_earlier(
    run: RunDirectory,
    ledger: Iterable[Line],
    specs: Sequence[DnnSpec],
    *,
    retry_failed: bool,
    regroups: bool = True,
    problem: str | None = None,
    keep: str = "both",
    asked_to_stop: Collection[str] = (),
) -> Earlier:
    """Combine the ledger and the checkpoints; damaged checkpoints are kept under another name.

    The checkpoints define how far each DNN has come, because the ledger may contain epochs whose weights were
    lost when the run was killed. The ledger defines which DNNs are done, pruned or failed, and which
    round was running.

    Args:
        ledger: all lines so far, in order.
        specs: the DNNs; a DNN that was done resumes if its stop rule now allows more epochs, and one that was
            pruned if it may no longer be pruned.
        retry_failed: whether failed DNNs resume from their last checkpoint.
        regroups: whether slots may be left out of groups; if not, slots that were left out may be used again.
            A round is not resumed if its groups lack slots that may now be used again, for this reason or
            because the hosts have changed.
        problem: what is wrong with the file of the ledger; None if it is whole.
        keep: `checkpoint.keep`.
        asked_to_stop: DNNs that the user has asked to stop. Of these and of all others, those that were
            stopped stay so.

    Raises:
        DataError: if a checkpoint belongs to another DNN.
        CheckpointError: if a checkpoint has measurements of its last epoch that are not valid.
        InputError: if a DNN would have to continue from weights that are not kept.
    """
    facts = _Facts()
    for line in ledger:
        facts.take(line)
    newly_asked = [name for name in asked_to_stop if name not in facts.stopped]
    facts.stopped |= dict.fromkeys(newly_asked, STOPPED_BY_USER)
    warnings = [] if problem is None else [f"{problem}; training resumes from the checkpoints"]
    progress: dict[str, DnnProgress] = {}
    fingerprints: dict[str, str] = {}
    class_names: dict[str, tuple[str, ...]] = {}
    passes: dict[str, Mapping[int, EpochFacts]] = {}
    next_pass = facts.next_pass
    with ThreadPoolExecutor(NUM_READERS) as readers:  # reading and checking the sums release the GIL
        found = list(readers.map(lambda spec: facts.recover(run, spec, keep), specs))
    saved: dict[str, SavedWeights] = {}
    unrecorded: list[EpochDone] = []
    for spec, (state, weights, problems) in zip(specs, found, strict=True):
        saved[spec.dnn_id] = weights
        warnings.extend(problems)
        path = run.job(spec.dnn_id) / CURRENT
        if problem is None and facts.has_started and not any(str(path) in text for text in problems):
            lost = facts.unrecorded(path, spec.dnn_id, state)
            if lost is None:
                warnings.extend(facts.unlike(path, spec.dnn_id, state))
            else:
                unrecorded.append(lost)
                facts.take(lost)
        if state is not None and state.name != spec.dnn_id:
            raise DataError(
                f"{run.job(spec.dnn_id)}: the checkpoint belongs to {state.name!r}; restore that of "
                f"{spec.dnn_id!r}"
            )
        if state is not None:
            next_pass = max(next_pass, state.position.pass_index + 1)
            fingerprints[spec.dnn_id] = state.fingerprint
            class_names[spec.dnn_id] = tuple(map(str, state.meta.get(CLASSES, ())))
            passes[spec.dnn_id] = facts.of_passes(spec.dnn_id, state)
        progress[spec.dnn_id] = _progress_of(spec, state, facts, retry_failed=retry_failed)
    going_on = [name for name in fingerprints if progress[name].state not in TERMINAL]
    warnings.extend(changed_files(facts.initial[name] for name in going_on if name in facts.initial))
    if fingerprints and not facts.has_started:
        warnings.append(
            f"{run.ledger}: holds no start of this run, although there are checkpoints, so earlier results "
            "and rounds are missing from reports, and failed DNNs are tried again; training resumes from "
            "the checkpoints"
        )
    if not regroups:
        facts.forget_left_out()
    facts.drop_short({dnn_id for dnn_id, its in progress.items() if its.state not in TERMINAL})
    retried = tuple(spec.dnn_id for spec in specs if retry_failed and spec.dnn_id in facts.failed)
    choice = facts.choice
    if choice is not None and retried:  # it knew fewer DNNs than there are now
        choice = replace(choice, num_dnns=None)
    resume = ResumeState(
        dnns=progress,
        next_pass=next_pass,
        next_round_index=facts.next_round_index,
        interrupted=facts.open_round,
        cluster=facts.cluster,
        preprocessing_samples_per_s=facts.preprocessing_samples_per_s,
        kept=facts.kept,
        left_out={dnn_id: tuple(slots) for dnn_id, slots in facts.left_out.items()},
        choice=choice,
    )
    other_best = [name for name, its in saved.items() if its.best != facts.best.get(name, 0)]
    return Earlier(
        resume,
        facts.accounts,
        warnings,
        fingerprints,
        retried,
        [name for name in newly_asked if name in progress and progress[name].state is DnnState.STOPPED],
        facts.bad_samples,
        saved,
        other_best,
        unrecorded,
        passes,
        class_names,
    )


def _progress_of(
    spec: DnnSpec, state: TrainingState | None, facts: _Facts, *, retry_failed: bool
) -> DnnProgress:
    cause, detail = facts.failed.get(spec.dnn_id, ("", ""))
    history = () if state is None else facts.with_evidence(spec.dnn_id, state)
    kind = DnnState.PENDING
    if spec.dnn_id in facts.done and evaluate(spec.stop, history) is not None:
        kind, detail = DnnState.DONE, facts.done[spec.dnn_id]
    elif spec.dnn_id in facts.pruned and spec.may_be_pruned and history:
        kind, detail = DnnState.PRUNED, facts.pruned[spec.dnn_id]
    elif cause and not retry_failed:
        kind = DnnState.FAILED
    elif spec.dnn_id in facts.stopped:
        kind, cause, detail = DnnState.STOPPED, "", facts.stopped[spec.dnn_id]
    else:
        cause, detail = "", ""
    return DnnProgress(
        state=kind,
        epochs=0 if state is None else state.epoch,
        history=history,
        position=None if state is None else state.position,
        cause=cause,
        detail=detail,
    )


class _Facts:
    """Reads a ledger line by line."""

    def __init__(self) -> None:
        self.done: dict[str, str] = {}
        self.pruned: dict[str, str] = {}
        self.stopped: dict[str, str] = {}
        self.failed: dict[str, tuple[str, str]] = {}
        # By DNN, pass and seconds: no other run has the same, and no other training of the pass.
        self.epochs: dict[tuple[str, int, float], EpochFacts] = {}
        self.begun: set[str] = set()  # DNNs that a plan has let train
        self.saved: dict[str, int] = {}  # the epoch of the last checkpoint
        self.best: dict[str, int] = {}
        self.initial: dict[str, InitialWeightsLine] = {}
        self.accounts: dict[str, Account] = {}
        self.bad_samples: set[int] = set()
        self.next_round_index = 0
        self.next_pass = 0
        self.cluster: Cluster | None = None
        self.kept: dict[str, tuple[int, ...]] = {}
        self.left_out: dict[str, list[int]] = {}
        self.preprocessing_samples_per_s: float | None = None
        self.choice: ScheduleChosen | None = None
        self.open_round: RoundPlan | None = None
        self._pausing: set[str] = set()  # asked to leave the open round until others have results
        self._forgotten: dict[str, list[int]] = {}  # left out in the open round, but may be used again
        self._started_on: Cluster | None = None

    @property
    def has_started(self) -> bool:
        """Whether the ledger holds a start."""
        return self._started_on is not None

    def take(self, line: Line) -> None:
        match line:
            case RunStartedLine():
                cluster = Cluster(tuple(Node(node.host, node.num_slots) for node in line.nodes))
                if not (is_same(self._started_on, cluster) and line.regroup):
                    self.forget_left_out()
                self._started_on = cluster
            case PreprocessingMeasured(samples_per_s) if math.isfinite(samples_per_s):
                self.preprocessing_samples_per_s = samples_per_s
            case ScheduleChosen():
                self.choice = line
                if self.open_round is None:
                    self.cluster = self._started_on
            case StartRound(plan):
                self.cluster = self._started_on
                self.kept, self._forgotten, self._pausing = {}, {}, set()
                self.open_round = plan
                self._take_plan(plan)
                self.next_pass = max(self.next_pass, plan.first_pass + 1)
            case StartGroup(plan):  # from then on there are no rounds
                self.cluster = self._started_on
                self.kept, self.open_round = {}, None
                self._take_plan(plan)
            case BadSampleLine(sample_id):
                self.bad_samples.add(sample_id)
            case NextPass():
                self.next_pass = max(self.next_pass, line.pass_index + 1)
            case LeaveRound(dnn, "regroup"):
                planned = {} if self.open_round is None else self.open_round.slots_of_dnn
                if dnn in planned:
                    self.kept[dnn] = planned[dnn]
            case LeaveRound(dnn, "paused"):
                self._pausing.add(dnn)
            case LeaveOut(dnn, slot):
                self.left_out.setdefault(dnn, []).append(slot)
            case StopStream():
                if not line.suspended and not line.continues:
                    self.open_round = None
            case _:
                self._take_dnn(line)

    def _take_plan(self, plan: RoundPlan) -> None:
        self.next_round_index = max(self.next_round_index, plan.index + 1)
        self.begun.update(plan.slots_of_dnn)
        for dnn in plan.slots_of_dnn:
            self.pruned.pop(dnn, None)  # it trains on without the rule, and is judged again with one

    def _take_dnn(self, line: Line) -> None:
        match line:
            case DnnDoneLine(dnn, detail):
                self.done[dnn] = detail
                self.failed.pop(dnn, None)
            case DnnPrunedLine(dnn, detail):
                self.pruned[dnn] = detail
            case DnnStoppedLine(dnn, detail):
                self.stopped[dnn] = detail
            case EpochDone(dnn, pass_index):
                self.epochs[dnn, pass_index, line.seconds] = line.facts
            case CheckpointWritten(dnn, epoch):
                self.saved[dnn] = epoch
            case BestKeptLine(dnn, epoch):
                self.best[dnn] = epoch
            case InitialWeightsLine(dnn):
                self.initial[dnn] = line
            case DnnRetriedLine(dnn):
                self.failed.pop(dnn, None)
            case DnnFailed(dnn, cause, detail):
                self.failed[dnn] = (cause, detail)
            case GroupLeft(dnn):
                self._drop_paused(dnn)
                account = self.accounts.setdefault(dnn, Account())
                account.wall_time_s += line.wall_time_s if math.isfinite(line.wall_time_s) else 0.0
                account.slot_seconds += line.slot_seconds if math.isfinite(line.slot_seconds) else 0.0

    def recover(
        self, run: RunDirectory, spec: DnnSpec, keep: str
    ) -> tuple[TrainingState | None, SavedWeights, list[str]]:
        """Find the checkpoint of a DNN, see `recover_dnn`."""
        was_saved, had_best = spec.dnn_id in self.saved, bool(self.best.get(spec.dnn_id))
        return recover_dnn(run, spec, keep, was_saved=was_saved, had_best=had_best)

    def of_passes(self, dnn: str, state: TrainingState) -> dict[int, EpochFacts]:
        """Return the measurements of the epochs of a checkpoint that the ledger has, by pass."""
        found = {record.pass_index: self.epochs.get(_key(dnn, record)) for record in state.history}
        return {pass_index: facts for pass_index, facts in found.items() if facts is not None}

    def with_evidence(self, dnn: str, state: TrainingState) -> tuple[EpochRecord, ...]:
        """Return the history of a checkpoint, with what the ledger has beyond it."""
        found = (self.epochs.get(_key(dnn, record)) for record in state.history)
        return tuple(
            record if facts is None or facts.evidence is None else replace(record, evidence=facts.evidence)
            for record, facts in zip(state.history, found, strict=True)
        )

    def unrecorded(self, path: Path, dnn: str, state: TrainingState | None) -> EpochDone | None:
        """Return the last epoch of a checkpoint if it is the only one that the ledger lacks.

        A group waits for rank 0 after each epoch, so a rank 0 that is killed loses one of each DNN at most.
        Checkpoints of older versions have no measurements of the epoch.
        """
        if state is None or dnn not in self.begun:
            return None
        lacking = self._lacking(dnn, state)
        if len(lacking) != 1 or lacking[0] is not state.history[-1]:
            return None
        last, plain = lacking[0], state.meta.get(EPOCH_FACTS)
        try:
            facts = NOTHING_MEASURED if plain is None else facts_of(EpochFacts, plain)
        except ValueError as error:
            raise CheckpointError(
                f"{path}: the measurements of its last epoch are not valid ({error}); continue with the "
                "hpcbal that wrote it"
            ) from error
        busy_s = last.seconds - facts.wait_s
        return EpochDone(dnn, last.pass_index, last.metrics, last.seconds, busy_s, facts=facts)

    def _lacking(self, dnn: str, state: TrainingState) -> list[EpochRecord]:
        return [record for record in state.history if _key(dnn, record) not in self.epochs]

    def unlike(self, path: Path, dnn: str, state: TrainingState | None) -> Iterator[str]:
        """Yield a warning if a whole checkpoint is older than the ledger says, newer, or of another run."""
        saved = self.saved.get(dnn)
        if state is None:
            if saved is not None:
                yield f"{path}: the checkpoint is gone; {dnn} starts again"
            return
        if saved is not None and state.epoch < saved:
            yield (
                f"{path}: the checkpoint is of epoch {state.epoch}, but ledger.jsonl has a later one, of "
                f"epoch {saved} (was the run copied while it trained?); {dnn} continues from the older one"
            )
        if unknown := [record.epoch for record in self._lacking(dnn, state)]:
            yield (
                f"{path}: the checkpoint has epochs that ledger.jsonl lacks, {unknown[0]} to {unknown[-1]} "
                "(was it copied while the run trained, or from another run?); training resumes from the "
                "checkpoint, but reports lack these epochs"
            )

    def _drop_paused(self, dnn: str) -> None:
        """An interrupted round continues without a DNN that was paused and has left it."""
        if dnn in self._pausing and self.open_round is not None:
            self.open_round = without(self.open_round, {dnn})

    def forget_left_out(self) -> None:
        """Allow slots again that were left out: the hosts have changed, or the user wants them back."""
        for dnn_id, slots in self.left_out.items():
            self._forgotten.setdefault(dnn_id, []).extend(slots)
        self.left_out = {}

    def drop_short(self, live_ids: Collection[str]) -> None:
        """Do not resume groups of live DNNs that lack a slot which may be used again."""
        if is_short(slots_of(self.open_round), self._forgotten, live_ids):
            self.open_round = None
        if is_short(self.kept, self._forgotten, live_ids):
            self.kept = {}


def _key(dnn: str, record: EpochRecord) -> tuple[str, int, float]:
    return dnn, record.pass_index, record.seconds
