"""Start the scheduler rank: its state machine, with the results of earlier starts, and its outputs."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace

from hpcbal import env
from hpcbal.cluster.launch_line import crowded_hosts, slots_share_cores
from hpcbal.config import EnsembleConfig
from hpcbal.config.checks.warnings import batches_above, check_parts, check_shares
from hpcbal.config.scheduling import may_limit_to_one_slot, settings_of, specs_of
from hpcbal.control.ensemble import Ensemble
from hpcbal.control.progress import ScheduleSettings
from hpcbal.control.states import TERMINAL
from hpcbal.errors import InputError
from hpcbal.runtime.rank.context import RankContext
from hpcbal.runtime.rank.data import RankData, StreamFacts
from hpcbal.runtime.record.console import Console, node_lines
from hpcbal.runtime.record.final_report import write_final_report
from hpcbal.runtime.record.journal import Journal
from hpcbal.runtime.record.requests import Requests
from hpcbal.runtime.resuming.known_rates import known_rates, rate_keys
from hpcbal.runtime.resuming.opening import OpenedRun, check_fingerprint
from hpcbal.runtime.roles.scheduler import Scheduler
from hpcbal.runtime.start.recipe import Prepared, Recipe, collective_of
from hpcbal.telemetry.files.run_directory import RunDirectory
from hpcbal.training.collectives import ChosenCollective

log = logging.getLogger(__name__)


class SchedulerRecipe(Recipe):
    """Builds the scheduler, on the one rank that has opened the run's files."""

    def build(self, prepared: Sequence[Prepared | None]) -> None:
        """Build the scheduler; for errors see `make_scheduler`."""
        setting = self.setting
        assert setting.opened is not None, "the scheduler has opened the run"
        devices = [None if rank is None else rank.device for rank in prepared]
        summing = collective_of(setting.context.config, prepared)
        self._role = make_scheduler(setting.context, setting.data, setting.opened, devices, summing)

    def play(self) -> int:
        """Run the scheduler, then write the report."""
        code = self._role.run()
        write_final_report(RunDirectory(self.setting.context.output))
        return code


RECIPE = SchedulerRecipe


def make_scheduler(
    context: RankContext,
    data: RankData,
    opened: OpenedRun,
    devices: Sequence[str | None],
    summing: ChosenCollective | None = None,
) -> Scheduler:
    """The scheduler of rank 0, ready to run.

    Args:
        context: the context of rank 0.
        data: the data of rank 0.
        opened: the run's files, with the state that earlier starts left in them.
        devices: the device of each rank; None for ranks that do not train.
        summing: what sums gradients, to be told to the user.

    Raises:
        HpcbalError: if the batch of a DNN of the user's file does not fit in the ring, a new run has weights
            for more slots than there are, partitioned data would be spread over more slots than the data or a
            step has samples, a given profile cannot be used, or the checkpoints belong to other data.
    """
    config, roles, facts = context.config, context.roles, data.facts
    if not opened.earlier.resume.next_round_index:  # a resume on fewer slots uses the first of its weights
        check_shares(config, roles.cluster.num_slots)
    misfits = _misfits(config, roles.cluster.num_slots, data, opened)
    if opened.claim.resumed:
        moved, is_identified = opened.claim.moved, facts.is_identified
        note = check_fingerprint(
            opened.run,
            opened.earlier,
            facts.fingerprint,
            moved,
            is_identified=is_identified,
            class_names=facts.class_names,
        )
        if note:
            log.info("%s: %s", opened.run.root, note)
    device = " + ".join(sorted({name for name in devices if name is not None}))

    def keys_of(config: EnsembleConfig) -> dict[str, str]:
        return rate_keys(config, facts.spec.sample.shapes, facts.num_classes, device)

    keys = keys_of(config)
    settings = _settings(config, context, facts, opened)
    ensemble = Ensemble(
        specs_of(config),
        roles.cluster,
        settings,
        known_rates(config, opened.run, keys, roles.cluster.max_slots_per_node),
        opened.earlier.resume,
    )
    opened.accept()
    console = Console(config, roles.cluster.num_slots, facts.spec.num_train)
    journal = Journal(opened, ensemble, console, roles.cluster.num_slots, keys)
    _log_what_ends(ensemble, settings)
    journal.note_start(opened, roles, device)
    for line in (*node_lines(roles, devices), *_start_notes(context, settings, facts, summing)):
        console.note(line)
    for note in opened.notes:
        log.info("%s: %s", opened.run.root, note)
    of_cache = [data.cache_warning] if data.cache_warning else []
    for warning in (*opened.earlier.warnings, *_start_warnings(context, facts), *of_cache):
        console.warn(warning)
    return Scheduler(
        context,
        facts.spec,
        ensemble,
        journal,
        console,
        started_s=opened.request.started_s,
        hit_rate=data.hit_rate,
        requests=Requests(opened, ensemble, journal, keys_of, facts),
        misfits=misfits,
    )


def _misfits(config: EnsembleConfig, num_slots: int, data: RankData, opened: OpenedRun) -> dict[str, str]:
    """Return why DNNs that have joined cannot train here, by name; each of them fails alone.

    Args:
        num_slots: slots of the whole cluster.

    Raises:
        InputError: if a DNN of the user's own file cannot.
    """
    facts, found = data.facts, dict[str, str]()
    own = tuple(dnn for dnn in config.dnns if dnn.name not in opened.joined)
    check_parts(config.model_copy(update={"dnns": own}), num_slots, facts.spec.num_train)
    for dnn in config.dnns:
        progress = opened.earlier.resume.dnns.get(dnn.name)
        if progress is not None and progress.state in TERMINAL:
            continue
        try:
            facts.check_fits(dnn, config)
            if dnn.name in opened.joined:
                check_parts(config.model_copy(update={"dnns": (dnn,)}), num_slots, facts.spec.num_train)
            if dnn.name in data.misfits:
                raise InputError(data.misfits[dnn.name])
        except InputError as error:
            if dnn.name not in opened.joined:
                raise
            found[dnn.name] = f"{opened.joined[dnn.name]}: {error}"
    return found


def _log_what_ends(ensemble: Ensemble, settings: ScheduleSettings) -> None:
    """Log what earlier starts have decided and does not hold any more."""
    if ensemble.forgotten:
        log.info(
            "the hosts have changed: slots that were left out of %s may be used again",
            ", ".join(ensemble.forgotten),
        )
    if ensemble.too_wide:
        log.info(
            "the interrupted round is not resumed: %s had more slots than schedule.max_slots_per_dnn (%s) "
            "and batch_size allow now",
            ", ".join(ensemble.too_wide),
            settings.max_slots_per_dnn,
        )


def _start_notes(
    context: RankContext, settings: ScheduleSettings, facts: StreamFacts, summing: ChosenCollective | None
) -> list[str]:
    """Return how data are read and gradients summed, and slots of a DNN, where users may not expect it."""
    config = context.config
    notes = [f"data.dataset {config.data.dataset}: {note}" for note in facts.notes]
    is_older = len(facts.as_found) != len(facts.fingerprint)  # of a version with other digests
    if facts.as_found != facts.fingerprint and not is_older:
        notes.append("samples that were broken in earlier starts have changed, and are read again")
    if summing is not None and config.backend.name != "emulated" and context.roles.cluster.num_slots > 1:
        notes.append(str(summing))
    if config.slots.per_gpu > 1 and config.slot_limit == 1:
        notes.append("slots may share GPUs, so a DNN gets one slot (slots.per_gpu)")
    elif settings.max_slots_per_dnn != config.slot_limit:
        notes.append("slots share cores, so a DNN gets one slot (schedule.max_slots_per_dnn: auto)")
    return notes


def _start_warnings(context: RankContext, facts: StreamFacts) -> list[str]:
    """Warn of what may be a mistake, before the DNNs start."""
    config = context.config
    doubts = [f"data.dataset {config.data.dataset}: {doubt}" for doubt in (*facts.remarks, *facts.doubts)]
    if facts.spec.is_sized and config.data.access == "partitioned" and config.balance.samples != "chronica":
        doubts.append(
            "samples differ in size, but with data.access: partitioned and balance.samples: "
            f"{config.balance.samples} slots share them by number, not by work; use balance.samples: "
            "chronica, or data.access: shared (docs/unequal-samples.md)"
        )
    doubts += [] if facts.spec.is_sized else _unused_for_equal_samples(config)
    large = batches_above(config, facts.spec.num_train)
    if env.read("HPCBAL_LAUNCHED") is None:  # otherwise `hpcbal run` has warned of it
        doubts += crowded_hosts(context.roles, emulated=config.backend.is_emulated)
    return doubts if large is None else [*doubts, large]


def _unused_for_equal_samples(config: EnsembleConfig) -> list[str]:
    """Warn of changed keys that act on samples of unequal size only; the file does not show the sizes."""
    keys = ["cost", "gradient_weights", "max_work_per_slot"]
    if config.data.access == "shared":
        keys.append("samples")
    given, default = config.balance, type(config.balance)()
    return [
        f"balance.{key}: got {getattr(given, key)}, which has an effect only on samples that differ in size; "
        "those of this dataset do not: remove the key, or give the dataset the attribute 'sizes' "
        "(docs/unequal-samples.md)"
        for key in keys
        if getattr(given, key) != getattr(default, key)
    ]


def _settings(
    config: EnsembleConfig, context: RankContext, facts: StreamFacts, opened: OpenedRun
) -> ScheduleSettings:
    settings = replace(
        settings_of(config, facts.spec.num_positions),
        max_preprocessors=len(context.roles.preprocessor_ranks),
    )
    roles, is_emulated = context.roles, config.backend.is_emulated
    may_limit = may_limit_to_one_slot(config, roles.cluster.num_slots)
    if may_limit and slots_share_cores(roles, emulated=is_emulated):
        settings = replace(settings, max_slots_per_dnn=1)
    return settings.for_profiling() if opened.request.profile_only else settings
