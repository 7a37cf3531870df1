"""The runs of a command line, and what they need: nodes, ranks, cores, GPUs and time, and why."""

from __future__ import annotations

import argparse
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from hpcbal import env
from hpcbal.cli.options import print_warning
from hpcbal.cli.planning.prediction import Sources, largest_that_keeps, prediction_of
from hpcbal.cluster.launch_line import slots_on_cores
from hpcbal.cluster.roles import num_ranks_needed
from hpcbal.cluster.systems.job import LEAD_S
from hpcbal.cluster.walltime import WALLTIME_MARGIN_S
from hpcbal.config import EnsembleConfig, JobsConfig, load_config
from hpcbal.config.load import AnyConfig
from hpcbal.config.schema.ensemble import EnsembleSlotsConfig
from hpcbal.config.site import SiteConfig, site_file
from hpcbal.errors import HpcbalError, InputError
from hpcbal.kinds import ENSEMBLE, JOBS, PARAMSERVER
from hpcbal.planning.allocation import AllocationPrediction
from hpcbal.planning.calibration import ASSUMED_STARTUP_S
from hpcbal.telemetry.files.json_lines import duration_text
from hpcbal.telemetry.views.table import count_text

MOST_TASKS = 1000
"""Many sites allow no larger array."""

_SEEDS = re.compile(r"seeds=(\d{1,9}(?:-\d{1,9})?(?:,\d{1,9}(?:-\d{1,9})?)*)")


@dataclass(frozen=True, slots=True)
class Task:
    """One run.

    Attributes:
        path: its file.
        config: the configuration.
        overrides: texts of `--set`.
        output: its output directory.
    """

    path: Path
    config: AnyConfig
    overrides: tuple[str, ...]
    output: Path

    @property
    def words(self) -> tuple[str, ...]:
        """Return the words of its command behind `hpcbal`."""
        changes = (word for each in self.overrides for word in ("--set", each))
        return ("run", path_word(self.path), *changes, "--output", path_word(self.output))


def path_word(path: Path) -> str:
    """Return a path as a word of a command line, where one that begins with `-` would be an option."""
    return f"./{path}" if str(path).startswith("-") else str(path)


def tasks_of(args: argparse.Namespace) -> tuple[list[Task], Path, bool]:
    """Return the runs of a command line, the directory above them, and whether they are an array.

    Raises:
        InputError: if a configuration is wrong, an array has no runs, or two have one directory.
    """
    given, output = tuple(args.overrides), args.output or env.read("HPCBAL_OUTPUT")
    if args.array_of is not None:
        return _of_files(args, given)
    if args.config is None:
        raise InputError("no configuration: give CONFIG, or --array-of FILE...")
    if args.array is None:
        task = _task(args.config, given, output)
        return [task], task.output, False
    seeds = seeds_of(args.array)
    # The largest is the one that may not be allowed; all else is the same.
    one = _task(args.config, (*given, f"seed={max(seeds)}"), output)
    tasks = [
        _writing_to(
            one.output / f"seed-{seed}",
            Task(
                one.path, one.config.model_copy(update={"seed": seed}), (*given, f"seed={seed}"), one.output
            ),
        )
        for seed in seeds
    ]
    return tasks, one.output, True


def _of_files(args: argparse.Namespace, given: tuple[str, ...]) -> tuple[list[Task], Path, bool]:
    if args.config is not None or args.array is not None:
        raise InputError("--array-of names the configurations: give neither CONFIG nor --array beside it")
    if len(args.array_of) > MOST_TASKS:
        raise InputError(f"--array-of: got {len(args.array_of)} files, allowed: at most {MOST_TASKS}")
    tasks = [_task(path, given, None) for path in args.array_of]
    folder: Path = args.output or tasks[0].output.parent
    if args.output is not None:
        tasks = [_writing_to(folder / task.config.name, task) for task in tasks]
    taken: dict[Path, Task] = {}
    for task in tasks:
        if task.output in taken:
            raise InputError(
                f"{taken[task.output].path} and {task.path} both write to {task.output}; give them different "
                "names, or different output.dir"
            )
        taken[task.output] = task
    return tasks, folder, True


def _task(path: Path, overrides: tuple[str, ...], output: Path | str | None) -> Task:
    config = load_config(path, overrides, warn=print_warning, beforehand=True)
    folder = Path(output or config.output.dir)
    return _writing_to(folder, Task(path, config, overrides, folder))


def _writing_to(output: Path, task: Task) -> Task:
    """Return a task that writes to another directory, where the prediction then looks for earlier starts."""
    section = task.config.output.model_copy(update={"dir": str(output)})
    return replace(task, output=output, config=task.config.model_copy(update={"output": section}))


def seeds_of(text: str) -> list[int]:
    """Return the seeds of `seeds=0-9` or `seeds=1,3,5-7`.

    Raises:
        InputError: if the text has another form, no seeds, or too many.
    """
    found = _SEEDS.fullmatch(text)
    if found is None:
        raise InputError(
            f"--array: got {text!r}, allowed: seeds=0-9 or seeds=1,3,5-7; for runs that differ in other "
            "keys, write a file for each and give --array-of FILE..."
        )
    seeds: dict[int, None] = {}
    for part in found[1].split(","):
        first, _, last = part.partition("-")
        if int(last or first) - int(first) >= MOST_TASKS or len(seeds) > MOST_TASKS:
            raise InputError(f"--array: got {text!r}, allowed: at most {MOST_TASKS} seeds")
        seeds.update(dict.fromkeys(range(int(first), int(last or first) + 1)))
    if not seeds:
        raise InputError(f"--array: got {text!r}, which has no seeds; write the smaller number first")
    if len(seeds) > MOST_TASKS:
        raise InputError(f"--array: got {text!r}, allowed: at most {MOST_TASKS} seeds")
    return list(seeds)


LEAST_TIME_S = 60 * math.ceil((WALLTIME_MARGIN_S + ASSUMED_STARTUP_S) / 60.0)
"""A shorter job would be stopped before its ranks have begun to work."""

_FEWER = {
    ENSEMBLE.name: "give fewer slots.per_node or slots.preprocessors_per_node",
    PARAMSERVER.name: "give more --nodes, or fewer machines",
    JOBS.name: "give more --nodes, or fewer machines",
}


@dataclass(frozen=True, slots=True)
class Needs:
    """The numbers to ask for.

    Attributes:
        num_nodes, ranks_per_node: numbers, >= 1.
        cores_per_rank: cores; None: as many as the system gives.
        gpus_per_node: GPUs, >= 0.
        time_s: time limit, in seconds.
        lead_s: so many seconds before its end the job is asked to stop.
        why: sentences.
    """

    num_nodes: int
    ranks_per_node: int
    cores_per_rank: int | None
    gpus_per_node: int
    time_s: int
    lead_s: int
    why: tuple[str, ...]


def needs_of_all(args: argparse.Namespace, tasks: Sequence[Task], site: SiteConfig) -> Needs:
    """Return the needs of the runs of an array, which get the same nodes each, and the longest time.

    Raises:
        InputError: as for `needs_of`, or if they need different numbers of nodes, ranks or GPUs.
    """
    if (args.nodes == "auto") != (args.use is not None):
        raise InputError("--nodes auto and --use SHARE go together, such as --nodes auto --use 0.8")
    each = {task.path: task for task in tasks}  # runs that differ in their seed need the same
    needs = {path: needs_of(args, task, site) for path, task in each.items()}
    first = next(iter(needs.values()))
    for path, other in needs.items():
        if _node_text(other) != _node_text(first):
            raise InputError(
                f"{path} needs {_node_text(other)}, and {next(iter(needs))} {_node_text(first)}; the runs of "
                "an array get equal nodes, so submit them one by one"
            )
    return max(needs.values(), key=lambda found: found.time_s)


def needs_of(args: argparse.Namespace, task: Task, site: SiteConfig) -> Needs:
    """Return the needs of a run.

    Raises:
        InputError: if the configuration leaves open what only the allocation would tell, or nothing says how
            long the run takes.
    """
    config = task.config
    slots, ranks, gpus, why = _ranks(1 if args.nodes == "auto" else args.nodes, config, site)
    walltime_s = None if config.walltime is None else math.ceil(config.walltime)
    given_s = walltime_s if args.time is None else None if args.time == "auto" else int(args.time)
    if given_s is not None and given_s < LEAST_TIME_S:
        key = "walltime" if args.time is None else "--time"
        raise InputError(
            f"{key}: got {duration_text(given_s)}, allowed in a batch job: "
            f"{duration_text(LEAST_TIME_S)} or more, because a run takes seconds to start and stops "
            f"{WALLTIME_MARGIN_S:.0f} s before its end"
        )
    prediction = _prediction(args, task, slots, must=given_s is None or args.nodes == "auto")
    num_nodes = args.nodes
    if isinstance(prediction, AllocationPrediction):
        num_nodes = prediction.num_nodes
        reasons = [line for line in prediction.lines() if not line.startswith("walltime")]
    else:
        reasons = [f"not predicted: {prediction}"]
    if given_s is None:
        assert isinstance(prediction, AllocationPrediction)
        lead_s, time_s = prediction.lead_s, prediction.ask_s
        reason = (
            f"time: the upper end, and the {count_text(lead_s // 60, 'minute')} before the end of the job "
            "in which it is asked to stop and writes a checkpoint"
        )
    else:
        lead_s, time_s = min(LEAD_S, given_s // 4), given_s
        reason = "time: as given by --time" if args.time else "time: the walltime of the configuration"
    cores = None if site.cores_per_node is None else site.cores_per_node // ranks
    if cores == 0:
        raise InputError(
            f"{count_text(ranks, 'rank')} on a node, but {site_file()} has cores_per_node: "
            f"{site.cores_per_node}; {_FEWER[config.kind]}, or correct cores_per_node"
        )
    if cores is None:
        reasons.append("cores: one for each rank, because the site file has no cores_per_node")
    else:
        reasons.append(f"cores: {cores} for each rank, of {site.cores_per_node} on a node")
    return Needs(num_nodes, ranks, cores, gpus, time_s, lead_s, (why, *reasons, reason))


def _prediction(
    args: argparse.Namespace, task: Task, slots_per_node: int, *, must: bool
) -> AllocationPrediction | str:
    """Return the prediction of a run; if it need not be there, instead of an error the reason."""
    sources = Sources(task.path, args.profile, args.samples, args.open_data)
    try:
        if args.nodes == "auto":
            return largest_that_keeps(
                task.config, sources, use=args.use, slots_per_node=slots_per_node, warn=print_warning
            )
        return prediction_of(
            task.config, sources, num_nodes=args.nodes, slots_per_node=slots_per_node, warn=print_warning
        )
    except HpcbalError as error:
        if must:
            raise InputError(f"{error}; or give --time H:MM") from error
        return str(error)


def _node_text(needs: Needs) -> str:
    gpus = f" and {count_text(needs.gpus_per_node, 'GPU')}" if needs.gpus_per_node else ""
    nodes = count_text(needs.num_nodes, "node")
    return f"{nodes} with {count_text(needs.ranks_per_node, 'rank')}{gpus}"


def _ranks(num_nodes: int, config: AnyConfig, site: SiteConfig) -> tuple[int, int, int, str]:
    """Return the numbers of slots, ranks and GPUs of a node, and a sentence."""
    per_node = config.slots.per_node
    if isinstance(config, EnsembleConfig):
        num_preprocessors = config.slots.preprocessors_per_node
        takes_gpus = config.slots.device != "cpu" and not config.backend.is_emulated
        gpus = (site.gpus_per_node or 0) if takes_gpus else 0
        is_given = isinstance(per_node, int)
        if not isinstance(per_node, int):
            per_node = gpus * config.slots.per_gpu or _slots_on_cores(site, num_preprocessors)
        wanted = -(-per_node // config.slots.per_gpu)
        if is_given and takes_gpus and wanted > gpus:
            _refuse_more_slots_than_gpus(per_node, config.slots, site)
            gpus = wanted if config.slots.device == "gpu" else gpus
        preprocessors = count_text(num_preprocessors, "preprocessor")
        why = (
            f"ranks on each node: {count_text(per_node, 'trainer')}, {preprocessors}, and one more, which is "
            "the scheduler on the first node"
        )
        return per_node, num_ranks_needed(per_node, num_preprocessors), min(gpus, wanted), why
    if isinstance(per_node, int):
        return per_node, per_node + 1, 0, f"ranks on each node: slots.per_node {per_node} + 1"
    from hpcbal.planning.paramserver import default_executors

    others = default_executors(config)
    ranks = math.ceil((others + 1) / num_nodes)
    most = math.ceil((others + 1) / ranks)
    names_machines = config.machines or (isinstance(config, JobsConfig) and config.schedule.groups)
    if names_machines and most < num_nodes:
        raise InputError(
            f"--nodes: got {num_nodes}, allowed: at most {most}, because 1 master and "
            f"{count_text(others, 'executor')} leave the others empty; or describe more machines"
        )
    why = f"ranks: 1 master + {count_text(others, 'executor')}, spread evenly over the nodes"
    return ranks - 1, ranks, 0, why


def _refuse_more_slots_than_gpus(per_node: int, slots: EnsembleSlotsConfig, site: SiteConfig) -> None:
    """Refuse too many slots for a GPU, as the run does; nodes without any are for the cores."""
    if site.gpus_per_node or (slots.device == "gpu" and site.gpus_per_node is not None):
        raise InputError(
            f"{count_text(per_node, 'slot')} on a node, but {site_file()} has gpus_per_node: "
            f"{site.gpus_per_node}; give fewer slots.per_node, or slots.per_gpu above {slots.per_gpu}, or "
            "slots.device: cpu, or correct gpus_per_node"
        )


def _slots_on_cores(site: SiteConfig, num_preprocessors: int) -> int:
    if site.cores_per_node is None:
        raise InputError(
            "slots.per_node is auto, which is known only inside the allocation; give it, for example --set "
            f"slots.per_node=4, or gpus_per_node or cores_per_node in {site_file()}"
        )
    # A batch system gives each rank a core of its own, unlike a machine on which ranks share cores.
    beside = num_ranks_needed(0, num_preprocessors)
    return max(1, min(slots_on_cores(site.cores_per_node, num_preprocessors), site.cores_per_node - beside))
