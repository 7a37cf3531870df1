"""One rank of `hpcbal evaluate`: find the ranks that compute, evaluate with them, report on the first one."""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import cast

from mpi4py import MPI

from hpcbal.cluster.cgroup import Cores
from hpcbal.cluster.devices import granted_gpus, visible_gpus
from hpcbal.cluster.discovery import infos_of_ranks, split_by_node
from hpcbal.cluster.roles import SCHEDULER_RANK
from hpcbal.cluster.started import Launcher
from hpcbal.comm.collectives import (
    ReportedError,
    all_or_none,
    patient_allgather,
    patient_barrier,
    patient_broadcast,
)
from hpcbal.config import EnsembleConfig, add_import_roots
from hpcbal.data.column_file import ColumnFile
from hpcbal.data.evaluation import open_sample_set
from hpcbal.data.source import open_source
from hpcbal.errors import ClusterError, HpcbalError, OutputError, code_of_end
from hpcbal.garbage import collect_as_usual
from hpcbal.processes import say
from hpcbal.runtime.evaluating.mpi_workers import MpiWorkers
from hpcbal.runtime.evaluating.predicting import Predictor, StoppedError
from hpcbal.runtime.evaluating.request import (
    ENSEMBLES,
    VALIDATION,
    EvaluationRequest,
    TrainedRun,
    open_trained,
)
from hpcbal.runtime.evaluating.result import EvaluationData, Kept, evaluate_run, report
from hpcbal.runtime.handoff.start_file import StarterWatch, StartFile
from hpcbal.runtime.health.ending import JobEnder, StopFlag
from hpcbal.runtime.health.liveness import Liveness
from hpcbal.runtime.job import run_in_job
from hpcbal.runtime.rank.output import kept_output
from hpcbal.telemetry.files.run_directory import RunDirectory
from hpcbal.telemetry.streams.rank_log import configure_rank_logging
from hpcbal.telemetry.views.evaluation import Evaluation
from hpcbal.training.devices import LocalSlots
from hpcbal.training.frameworks import NativeBackend

log = logging.getLogger(__name__)


def run_evaluation(request: EvaluationRequest, launcher: Launcher, stop: StopFlag, liveness: Liveness) -> int:
    """Run one rank; returns the exit code, which is the same on all ranks.

    Args:
        request: what the command line asked for.
        launcher: the launcher that started this process.
        stop: the stop flag, which already catches signals.
        liveness: of this rank.
    """

    def body(world: MPI.Intracomm, end: JobEnder, logs: ExitStack) -> int:
        start = StartFile.of_rank()
        with ExitStack() as stack:
            opened = all_or_none(world, lambda: open_trained(request) if _is_first(world) else None)
            run: TrainedRun = patient_broadcast(world, opened)
            add_import_roots(RunDirectory(run.root).config, run.import_roots)
            log_file = _start_logs(world, run, logs)
            node = split_by_node(world, run.config.slots.ranks_per_node)
            all_or_none(world, lambda: end.share(node))
            _watch(world, node, run, log_file, end, stack, liveness)
            lost = StarterWatch(start).lost
            part = _Part(request, run, liveness, lambda: stop.reason is not None or lost() is not None)
            code = start.leave_exit_code(world.rank, _take_part(world, node, part))
            stop.ignore()
            patient_barrier(world)
        return code

    return run_in_job(launcher, liveness, body)


@dataclass(frozen=True, slots=True)
class _Part:
    """This rank's part in an evaluation: the request, the run, and its signs of life.

    Attributes:
        request: what the command line asked for.
        run: the run to evaluate.
        liveness: where it notes what it does.
        is_to_stop: whether it was asked to stop, or lost the process that has started it.
    """

    request: EvaluationRequest
    run: TrainedRun
    liveness: Liveness
    is_to_stop: Callable[[], bool]


def _is_first(world: MPI.Intracomm) -> bool:
    return bool(world.rank == SCHEDULER_RANK)


def _start_logs(world: MPI.Intracomm, run: TrainedRun, logs: ExitStack) -> Path | None:
    """Open the log of this rank; collective. Rank 0 goes first: it removes the first error of a former start.

    Returns: its path; None if it cannot be written, for example in a run of somebody else.
    """
    run_directory = RunDirectory(run.root)
    folder = run_directory.evaluation_logs
    path, problem = folder / run_directory.rank_log(world.rank).name, None
    for is_my_turn in (_is_first(world), not _is_first(world)):
        if is_my_turn:
            try:
                log_of_rank = configure_rank_logging(
                    run.root,
                    world.rank,
                    socket.gethostname(),
                    folder=folder,
                    console_level=logging.WARNING,
                )
                logs.enter_context(log_of_rank)
                logs.enter_context(
                    kept_output(folder / run_directory.rank_output(world.rank).name, world.rank)
                )
            except OutputError as error:
                problem = error
        patient_barrier(world)
    problems = [each for each in patient_allgather(world, problem) if each is not None]
    if problems and _is_first(world):
        say(f"warning: without logs: {problems[0]}")
    return None if problem is not None else path


def _watch(
    world: MPI.Intracomm,
    node: MPI.Intracomm,
    run: TrainedRun,
    log_file: Path | None,
    end: JobEnder,
    stack: ExitStack,
    liveness: Liveness,
) -> None:
    """Let the ranks of the node watch each other, until `stack` is unwound; collective."""
    infos = infos_of_ranks(world, node, run.config.slots.device)
    timeout_s = run.config.stall_timeout_s
    liveness.watch(world.rank, infos, lambda rank: "evaluator", end.abort)
    stack.callback(liveness.stop)
    if log_file is not None:
        stack.enter_context(liveness.traced(log_file, timeout_s))
    liveness.note("starting")
    liveness.watch_notes(timeout_s, RunDirectory(run.root).evaluation_logs)


def _take_part(world: MPI.Intracomm, node: MPI.Intracomm, part: _Part) -> int:
    slots = _slots_of_node(node, part.run.config)
    computes = node.rank < len(slots.cores)
    comm = cast("MPI.Intracomm", world.Split(0 if computes else 1, world.rank))
    code = 0
    if computes:
        try:
            code = _evaluate(comm, slots, part)
        except ReportedError as error:
            code = error.code
    with part.liveness.waiting():
        return int(patient_broadcast(world, code))


def _slots_of_node(node: MPI.Intracomm, config: EnsembleConfig) -> LocalSlots:
    """Which ranks of this node compute: one for each slot or GPU, otherwise all; collective on the node."""
    everyone = patient_allgather(node, (visible_gpus(config.slots.device), Cores.of_this_process()))
    gpus = {gpu for some, _ in everyone for gpu in some}
    per_node = config.slots.per_node
    wanted = per_node if isinstance(per_node, int) else len(gpus) or node.size
    seen, cores = zip(*everyone[:wanted], strict=True)
    granted = granted_gpus(os.environ)
    slots = config.slots
    return LocalSlots(node.rank, cores, slots.device, granted, seen, socket.gethostname(), slots.per_gpu)


def _evaluate(comm: MPI.Intracomm, slots: LocalSlots, part: _Part) -> int:
    """Evaluate on the ranks that compute; returns the exit code, on the first of them."""
    to = part.request.to
    with ExitStack() as stack:
        file = stack.enter_context(ColumnFile(to)) if to is not None and comm.rank == 0 else None
        kept = None if to is None else Kept(file, part.request.ensemble or ENSEMBLES[0])
        return _evaluate_and_keep(comm, slots, part, kept)


def _evaluate_and_keep(comm: MPI.Intracomm, slots: LocalSlots, part: _Part, kept: Kept | None) -> int:
    request, run, liveness = part.request, part.run, part.liveness
    log.info("evaluates %s with %d ranks that compute", run.root, comm.size)
    data = all_or_none(comm, liveness.doing("opening the data", lambda: _open_data(request, run)))
    _check_same(comm, run.config, data)
    native = partial(NativeBackend, run.config.backend, run.dnns, slots)
    backend = all_or_none(comm, liveness.doing("loading the backend", native))
    collect_as_usual()

    def check_stop() -> None:
        if part.is_to_stop():
            raise StoppedError

    predictor = Predictor(
        backend,
        data.trained,
        RunDirectory(run.root).job,
        request.which,
        run.config.seed,
        check_stop,
        liveness.note,
    )
    evaluation: Evaluation | None = None
    problem: HpcbalError | None = None
    try:
        evaluation = evaluate_run(MpiWorkers(comm, liveness), predictor, run, data, kept)
    except HpcbalError as error:  # the same on all ranks
        problem = error
    except StoppedError:
        if comm.rank == 0:
            say("hpcbal: stopped before the end; nothing was written. Run the same command again")
        return code_of_end("suspended")
    finally:
        predictor.close()
        backend.close()

    def finish() -> int:
        if evaluation is None:
            assert problem is not None
            raise problem
        if comm.rank == 0:
            some = bool(request.patterns)
            report(run, evaluation, data.samples, kept, as_json=request.as_json, is_of_some=some)
        return code_of_end("failed-dnns" if evaluation.left_out else "done")

    return all_or_none(comm, liveness.doing("writing the evaluation", finish))


def _open_data(request: EvaluationRequest, run: TrainedRun) -> EvaluationData:
    trained = open_source(run.config)
    labelled = request.has_labels
    samples = open_sample_set(run.config, trained, run.data, request.data_args, has_labels=labelled)
    validation = samples if run.data == VALIDATION else None
    if validation is None and trained.num_validation:
        validation = open_sample_set(run.config, trained, VALIDATION)
    return EvaluationData(trained, samples, validation)


def _check_same(comm: MPI.Intracomm, config: EnsembleConfig, data: EvaluationData) -> None:
    """Check that all ranks see the same data; collective."""
    mine = (data.trained.fingerprint, data.samples.source.fingerprint)
    different = [theirs for theirs in patient_allgather(comm, mine) if theirs != mine]

    def check() -> None:
        if different:
            raise ClusterError(
                f"the data is not the same on all nodes (data.dataset {config.data.dataset}, evaluated on "
                f"{data.samples.name}): put it where all nodes can read it"
            )

    all_or_none(comm, check)
