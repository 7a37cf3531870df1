"""Build what the roles need: a trainer's backend and groups, and all that the scheduler works with."""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from dataclasses import replace

from mpi4py import MPI

from hpcbal.comm.collectives import patient_allgather
from hpcbal.config import EnsembleConfig
from hpcbal.config.checks.shares import check_parts, check_shares
from hpcbal.config.scheduling import settings_of, specs_of
from hpcbal.control import Ensemble, ScheduleSettings
from hpcbal.errors import InputError
from hpcbal.runtime.rank.context import RankContext
from hpcbal.runtime.record.console import Console
from hpcbal.runtime.record.journal import Journal
from hpcbal.runtime.resuming.known_rates import known_rates, rate_keys
from hpcbal.runtime.resuming.opening import OpenedRun
from hpcbal.runtime.resuming.resume import check_fingerprint
from hpcbal.runtime.roles.scheduler import Scheduler
from hpcbal.training.backend import Backend
from hpcbal.training.groups import COLLECTIVES, TrainerGroups

log = logging.getLogger(__name__)


def make_backend(context: RankContext, trainers: MPI.Intracomm) -> Backend:
    """The backend of a trainer rank; collective over the trainers, but a failure of one holds up none.

    Raises:
        InputError: TensorFlow is asked for, but cannot be imported.
        ClusterError: more trainers than GPUs on a node.
    """
    cores_of_trainer = patient_allgather(trainers, frozenset(os.sched_getaffinity(0)))
    config, roles = context.config, context.roles
    if config.backend.name == "emulated":
        from hpcbal.training.emulated_backend import EmulatedBackend

        gpus_per_node = roles.cluster.max_gpus_per_node
        workers = config.backend.workers
        worker = workers[trainers.rank % len(workers)] if workers else None
        return EmulatedBackend(
            config.backend.rates,
            gpus_per_node,
            config.backend.precision,
            worker,
            by_share=[dnn.name for dnn in config.dnns if (dnn.balance or config.balance.policy) != "even"],
        )
    try:
        from hpcbal.training.tensorflow_backend import TensorFlowBackend, setup_tensorflow
    except ImportError as error:
        raise InputError(
            f"backend.name is tensorflow, but TensorFlow cannot be imported here ({error}); install it with "
            "pip install 'hpcbal[tensorflow]', or try the ensemble with backend.name emulated"
        ) from error
    node_of_gpu = roles.cluster.node_of_gpus()
    my_node = roles.ranks[context.rank].node
    cores = [cores for gpu, cores in enumerate(cores_of_trainer) if node_of_gpu[gpu] == my_node]
    device = setup_tensorflow(roles.local_slot(context.rank), len(cores), cores)
    return TensorFlowBackend(device, config.backend.precision)


def check_collective(config: EnsembleConfig) -> None:
    """Load what sums the gradients, before all trainers start it together.

    Raises:
        InputError: it cannot be imported.
    """
    if config.backend.effective_collective != "horovod":
        return
    try:
        import hpcbal.training.horovod_collective  # noqa: F401
    except ImportError as error:
        raise InputError(
            f"backend.collective is horovod, but it cannot be imported here ({error}); install it (see "
            "docs/troubleshooting.md), or set backend.collective to mpi"
        ) from error


def open_groups(config: EnsembleConfig, trainers: MPI.Intracomm) -> TrainerGroups:
    """What forms the trainer groups; collective over the trainers."""
    return COLLECTIVES[config.backend.effective_collective](trainers)


def make_scheduler(context: RankContext, opened: OpenedRun, devices: Sequence[str | None]) -> Scheduler:
    """The scheduler of rank 0, ready to run.

    Args:
        devices: of each rank, None for those that do not train.

    Raises:
        HpcbalError: the batch of a DNN does not fit in the ring, a new run has weights for more GPUs than
            there are, partitioned data would lie on more GPUs than it or a step has samples, a given profile
            cannot be used, or the checkpoints belong to other data.
    """
    config, roles = context.config, context.roles
    if not opened.earlier.round_plans:  # a run that goes on with fewer GPUs takes the first of its weights
        check_shares(config, roles.cluster.num_gpus)
    check_parts(config, roles.cluster.num_gpus, context.stream_spec.num_train)
    for dnn in config.dnns:
        context.stream_spec.check_read(min(dnn.batch_size, context.stream_spec.num_positions))
    if opened.resumed:
        check_fingerprint(opened.run, opened.earlier, context.data_fingerprint)
    device = " + ".join(sorted({name for name in devices if name is not None}))
    keys = rate_keys(config, context.stream_spec.sample.shape, context.num_classes, device)
    ensemble = Ensemble(
        specs_of(config),
        roles.cluster,
        _settings(config, context, opened),
        known_rates(config, opened.run, keys, roles.cluster.max_gpus_per_node),
        opened.earlier.resume,
    )
    journal = Journal(opened, roles.cluster.num_gpus, keys)
    console = Console(config, roles.cluster.num_gpus, context.stream_spec.num_train)
    if ensemble.forgotten:
        log.info("the hosts are others: GPUs left out of %s are forgotten", ", ".join(ensemble.forgotten))
    if ensemble.too_wide:
        log.info(
            "schedule.max_gpus_per_dnn is %s now, and %s had more GPUs: the interrupted round does not go on",
            config.schedule.max_gpus_per_dnn,
            ", ".join(ensemble.too_wide),
        )
    nodes = [{"host": node.host, "num_gpus": node.num_gpus} for node in roles.cluster.nodes]
    journal.note_start(opened, nodes, len(roles.ranks), device)
    journal.name_tracks(roles)
    for warning in opened.earlier.warnings:
        console.warn(warning)
    return Scheduler(
        context,
        ensemble,
        journal,
        console,
        started_s=opened.request.started_s,
        profile_only=opened.request.profile_only,
    )


def _settings(config: EnsembleConfig, context: RankContext, opened: OpenedRun) -> ScheduleSettings:
    settings = replace(
        settings_of(config, context.stream_spec.num_positions),
        max_preprocessors=len(context.roles.preprocessor_ranks),
    )
    return replace(settings, profile=True, paradigm="global") if opened.request.profile_only else settings
