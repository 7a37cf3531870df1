"""One rank of `hpcbal evaluate`: find the ranks that compute, evaluate with them, report on the first one."""

from __future__ import annotations

import os
from contextlib import ExitStack
from typing import cast

from mpi4py import MPI

from hpcbal.cluster.accelerators import visible_gpus
from hpcbal.cluster.discovery import split_by_node
from hpcbal.cluster.launcher import Launcher
from hpcbal.cluster.roles import SCHEDULER_RANK
from hpcbal.comm.all_or_none import ReportedError, all_or_none
from hpcbal.comm.collectives import patient_allgather, patient_broadcast
from hpcbal.config import EnsembleConfig, add_import_roots
from hpcbal.data.evaluation import open_sample_set
from hpcbal.data.source import open_source
from hpcbal.errors import ClusterError, ExitCode, HpcbalError
from hpcbal.runtime.evaluating.predicting import Predictor, StoppedError
from hpcbal.runtime.evaluating.request import VALIDATION, EvaluationRequest, TrainedRun, open_trained
from hpcbal.runtime.evaluating.result import EvaluationData, evaluate_run, report
from hpcbal.runtime.evaluating.workers import MpiWorkers
from hpcbal.runtime.handoff.activity import Activity
from hpcbal.runtime.handoff.start_file import StartFile
from hpcbal.runtime.health.ending import JobEnd
from hpcbal.runtime.health.signals import StopFlag
from hpcbal.runtime.job import run_in_job
from hpcbal.runtime.start.backends import LocalSlots, load_backend
from hpcbal.stderr import say
from hpcbal.telemetry import RunDirectory
from hpcbal.telemetry.views.evaluation import Evaluation


def run_evaluation(request: EvaluationRequest, launcher: Launcher, stop: StopFlag, activity: Activity) -> int:
    """Run one rank; returns the exit code, which is the same on all ranks.

    Args:
        request: what the command line asked for.
        launcher: the launcher that started this process.
        stop: the stop flag, which already catches signals.
        activity: gets what this rank does.
    """

    def body(world: MPI.Intracomm, end: JobEnd, last: ExitStack) -> int:
        start = StartFile.of_rank()
        code = start.leave_exit_code(world.rank, _take_part(world, request, stop, activity))
        stop.ignore()
        return code

    return run_in_job(launcher, activity, body)


def _take_part(world: MPI.Intracomm, request: EvaluationRequest, stop: StopFlag, activity: Activity) -> int:
    is_first = world.rank == SCHEDULER_RANK
    opened = all_or_none(world, lambda: open_trained(request) if is_first else None)
    run: TrainedRun = patient_broadcast(world, opened)
    add_import_roots(RunDirectory(run.root).config)
    node = split_by_node(world, run.config.slots.ranks_per_node)
    slots = _slots_of_node(node, run.config)
    computes = node.rank < len(slots.cores)
    comm = cast(MPI.Intracomm, world.Split(0 if computes else 1, world.rank))
    code = 0
    if computes:
        try:
            code = _evaluate(comm, slots, request, run, stop, activity)
        except ReportedError as error:
            code = error.code
    return int(patient_broadcast(world, code))


def _slots_of_node(node: MPI.Intracomm, config: EnsembleConfig) -> LocalSlots:
    """Which ranks of this node compute: one for each slot or GPU, otherwise all; collective on the node."""
    everyone = patient_allgather(
        node, (visible_gpus(config.slots.device), frozenset(os.sched_getaffinity(0)))
    )
    gpus = {gpu for some, _ in everyone for gpu in some}
    per_node = config.slots.per_node
    wanted = per_node if isinstance(per_node, int) else len(gpus) or node.size
    return LocalSlots(node.rank, tuple(cores for _, cores in everyone[:wanted]))


def _evaluate(
    comm: MPI.Intracomm,
    slots: LocalSlots,
    request: EvaluationRequest,
    run: TrainedRun,
    stop: StopFlag,
    activity: Activity,
) -> int:
    """Evaluate on the ranks that compute; returns the exit code, on the first of them."""
    activity.note("opening the data")
    data = all_or_none(comm, lambda: _open_data(request, run))
    _check_same(comm, run.config, data)
    activity.note("loading the backend")
    backend = all_or_none(comm, lambda: load_backend(run.config, slots))

    def check_stop() -> None:
        if stop.reason is not None:
            raise StoppedError

    predictor = Predictor(
        backend,
        data.trained,
        RunDirectory(run.root).job,
        request.which,
        run.config.seed,
        check_stop,
        activity.note,
    )
    evaluation: Evaluation | None = None
    problem: HpcbalError | None = None
    try:
        evaluation = evaluate_run(MpiWorkers(comm), predictor, run, data)
    except HpcbalError as error:  # the same on all ranks
        problem = error
    except StoppedError:
        if comm.rank == 0:
            say("hpcbal: stopped before the end; nothing was written. Run the same command again")
        return int(ExitCode.RUN_AGAIN)
    finally:
        predictor.close()
        backend.close()

    def finish() -> int:
        if evaluation is None:
            assert problem is not None
            raise problem
        if comm.rank == 0:
            report(run, evaluation, as_json=request.as_json)
        return int(ExitCode.FAILED_DNNS if evaluation.left_out else ExitCode.DONE)

    return all_or_none(comm, finish)


def _open_data(request: EvaluationRequest, run: TrainedRun) -> EvaluationData:
    trained = open_source(run.config)
    samples = open_sample_set(run.config, trained, run.data, request.data_args)
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
