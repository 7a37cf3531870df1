"""How an ensemble of DNNs starts and goes: its ranks have roles, and each role a recipe."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import TYPE_CHECKING, cast

from hpcbal.cluster.launch_line import slots_on_cores
from hpcbal.cluster.roles import num_ranks_needed
from hpcbal.config import EnsembleConfig
from hpcbal.config.balance import balances_of
from hpcbal.control.states import TERMINAL
from hpcbal.errors import HpcbalError, InputError
from hpcbal.garbage import collect_as_usual
from hpcbal.runtime.handoff.launch_dir import RunRequest, output_of, small
from hpcbal.runtime.handoff.submissions import append_import_roots, with_submitted
from hpcbal.runtime.kinds.kind import KindRuns, RankWorld, refusal_of_operations
from hpcbal.telemetry.files.run_directory import RunDirectory
from hpcbal.telemetry.views.read_status import read_status
from hpcbal.telemetry.views.results import ResultRow

if TYPE_CHECKING:
    from mpi4py import MPI

    from hpcbal.cluster.roles import Roles
    from hpcbal.runtime.rank.context import LiveRank
    from hpcbal.runtime.rank.data import Before
    from hpcbal.runtime.resuming.opening import OpenedRun

NUM_READERS = 8
"""Number of checkpoints to check at the same time."""


class EnsembleRuns(KindRuns[EnsembleConfig, "OpenedRun"]):
    """Ensembles: a scheduler, and on each node preprocessors and trainers."""

    def requested(self, request: RunRequest, config: EnsembleConfig) -> EnsembleConfig:
        if request.num_operation_steps is not None:
            instead = "; leave it out to measure an ensemble's rates"
            what = "parameter-server jobs"
            raise InputError(refusal_of_operations(request.config_path, config.kind, what, instead))
        return small(config) if request.smoke else with_submitted(config, output_of(request, config))

    def with_submitted(self, config: EnsembleConfig, run: RunDirectory) -> EnsembleConfig:
        return with_submitted(config, run)

    def num_ranks(self, config: EnsembleConfig, num_gpus: int, num_cores: int) -> int:
        preprocessors = config.slots.preprocessors_per_node
        slots = config.slots.per_node if isinstance(config.slots.per_node, int) else 0
        slots = slots or num_gpus * config.slots.per_gpu
        slots = slots or slots_on_cores(num_cores, preprocessors, _most_useful_slots(config))
        return num_ranks_needed(slots, preprocessors)

    def num_busy_ranks(self, config: EnsembleConfig, ranks: int) -> int:
        return config.slots.preprocessors_per_node if config.backend.is_emulated else ranks - 1

    def is_kept(self, run: RunDirectory, config: EnsembleConfig, rows: Sequence[ResultRow]) -> bool:
        try:
            read_status(run.root)
        except HpcbalError:
            return False
        if [row.name for row in rows] != [dnn.name for dnn in config.dnns]:
            return False
        if any(search.num_open for search in config.searches):
            return False
        return all(row.state in TERMINAL for row in rows) and _are_weights_whole(run, rows)

    def open(self, request: RunRequest, config: EnsembleConfig) -> OpenedRun:
        from hpcbal.runtime.resuming.opening import open_run

        return open_run(request, config)

    def roles(self, world: RankWorld, config: EnsembleConfig) -> Roles:
        from hpcbal.cluster.discovery import discover

        slots = config.slots.per_node
        return discover(
            world.all,
            world.node,
            slots if isinstance(slots, int) else None,
            config.slots.preprocessors_per_node,
            config.slots.device,
            config.slots.per_gpu,
        )

    def play(
        self,
        world: RankWorld,
        rank: LiveRank,
        request: RunRequest,
        opened: OpenedRun | None,
        last: ExitStack,
    ) -> int:
        from hpcbal.comm.collectives import all_or_none, patient_allgather, patient_broadcast
        from hpcbal.runtime.rank.context import RankContext
        from hpcbal.runtime.rank.shared_data import open_data
        from hpcbal.runtime.start.recipe import ROLES, Setting, recipe_of

        config = cast("EnsembleConfig", rank.config)
        name, ranks_by_role = rank.roles.role_of(world.all.rank), rank.roles.ranks_by_role
        recipe_class = recipe_of(name)
        unfinished, roots, before = patient_broadcast(
            world.all, None if opened is None else (opened.unfinished, opened.import_roots, _before(opened))
        )
        append_import_roots(roots)
        data = open_data(
            world.all,
            world.node,
            config,
            rank.roles,
            rank.channel,
            before,
            meanwhile=lambda: recipe_class.load_libraries(config),
        )
        last.callback(data.close)
        color, key = ROLES.index(name), ranks_by_role[name].index(world.all.rank)
        peers = cast("MPI.Intracomm", world.all.Split(color, key))
        context = RankContext.of(rank, config)
        recipe = recipe_class(
            Setting(context, data, peers, world.all.Dup(), unfinished, before.joined, opened)
        )
        prepared = patient_allgather(world.all, all_or_none(world.all, recipe.prepare))
        all_or_none(world.all, recipe.check)
        all_or_none(world.all, lambda: recipe.build(prepared))
        collect_as_usual()
        return recipe.play()


RUNS = EnsembleRuns()


def _before(opened: OpenedRun) -> Before:
    from hpcbal.runtime.rank.data import Before

    earlier = opened.earlier
    trained_on = tuple(dict.fromkeys(earlier.fingerprints.values()))
    return Before(opened.joined, trained_on, tuple(earlier.bad_samples))


def _most_useful_slots(config: EnsembleConfig) -> int | None:
    """On how many cores the DNNs train at the same time, each on one; None: unlimited.

    With a limit in the configuration, each DNN may have so many. With partitioned data the number of slots is
    the number of parts, emulated slots need no core, and steps that are to be split need several slots.
    """
    is_split = any(not balance.policy.splits_evenly for balance in balances_of(config).values())
    is_unlimited = config.schedule.max_slots_per_dnn is None
    if config.data.access == "partitioned" or config.backend.is_emulated or is_split or is_unlimited:
        return None
    return len(config.dnns) * (config.slot_limit or 1)


def _are_weights_whole(run: RunDirectory, rows: Sequence[ResultRow]) -> bool:
    from hpcbal.checkpoint.weights import has_trained

    def is_whole(row: ResultRow) -> bool:
        best_epoch = row.numbers.get("saved_best_epoch")
        folder = run.job(row.name)
        return has_trained(folder, row.name, row.epochs, best_epoch=best_epoch, thoroughly=True)

    done = [row for row in rows if row.state == "done"]
    with ThreadPoolExecutor(NUM_READERS) as readers:
        return all(readers.map(is_whole, done))
