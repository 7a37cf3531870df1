"""A plan as text: flotillas, slot map, ranks, memory, and whether it fits into the walltime."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from hpcbal.events.ensemble import Schedule, ScheduleChosen
from hpcbal.planning.allocation import AllocationPrediction
from hpcbal.planning.cache import PlannedCache
from hpcbal.planning.ensemble_plan import EnsemblePlan, PlannedFlotilla, by_node, launch_lines, slot_map
from hpcbal.planning.memory import NodeMemory
from hpcbal.planning.wall_time import MOST_NODES_TRIED, PlanForecast, ranked
from hpcbal.telemetry.files.json_lines import duration_text
from hpcbal.telemetry.views.table import count_text, format_table

_ORDER = {
    "global": "as if the DNNs of each flotilla converged together",
    "local": "the first flotilla; free slots are refilled at once",
    "homogeneous": "random subsets, one slot each, one subset after the other",
    "elastic": "the first groups; at the end of each of its passes, a DNN may get more slots",
    "independent": "the first DNNs; a free slot takes the next DNN, the longest if rates are known",
}
"""The note of the table for each paradigm."""

NO_SIZE = (
    "the size of the dataset is not known: give --samples N, or --open-data to open it (which runs its code)"
)
"""Why there may be no wall time."""
_MAX_NAMES = 8
_UNITS = ("B", "KiB", "MiB", "GiB", "TiB")


def render_plan(
    plan: EnsemblePlan,
    command: Sequence[str],
    prediction: PlanForecast | str,
    memory: NodeMemory,
    bytes_per_node: int | None,
    choice: ScheduleChosen | None = None,
    cache: PlannedCache | None = None,
    times: AllocationPrediction | None = None,
) -> list[str]:
    """The plan as text, line by line.

    Args:
        plan: the plan to show.
        command: the command that starts the run, without launcher.
        prediction: the predicted times, or why they are not known.
        memory: memory of the fullest node.
        bytes_per_node: memory that a node has; None if not given.
        choice: how the schedule was chosen; None if it was given.
        cache: the cache of decoded samples; None if there is none.
        times: the band of the wall time, and use; None if they are not known.
    """
    nodes = plan.cluster.nodes
    many = f" in {count_text(len(plan.flotillas), 'flotilla')}" if plan.paradigm == "global" else ""
    headers = ("flotilla", "DNN", "slots", "samples/s", "with extra slots", "placement", "preprocessors")
    rows: list[list[str]] = []
    for index, planned in enumerate(plan.flotillas, start=1):
        rows += _table_rows(plan, planned, index)
    lines = [
        f"{plan.name}: {count_text(plan.num_dnns, 'DNN')}{many} on "
        f"{count_text(len(nodes), 'node')} with {count_text(nodes[0].num_slots, 'slot')} each",
        f"schedule {plan.schedule}: {_ORDER[plan.paradigm]}",
        "",
        *format_table(headers, rows, right=(0, 2, 3, 4, 6)),
        "",
        *_map_lines(plan),
        "",
        *_candidate_lines(choice, has_size=prediction != NO_SIZE),
        f"ranks: {plan.num_ranks} = 1 scheduler + {count_text(plan.max_preprocessors, 'preprocessor')} + "
        f"{count_text(plan.cluster.num_slots, 'trainer')} ({plan.ranks_per_node} per node)",
        f"preprocessors per node: {_counts_text(plan.preprocessors_per_node)}",
        *_memory_lines(memory, bytes_per_node),
        *cache_lines(cache),
        *_time_lines(prediction),
        *([] if times is None else times.lines()),
        *_start_lines(plan, command),
    ]
    if plan.rates.preprocessing_samples_per_s is None:
        lines.append("note: preprocessing was not measured, so the plan uses all preprocessors")
    return lines


def _candidate_lines(choice: ScheduleChosen | None, *, has_size: bool) -> list[str]:
    """The schedules that were compared, side by side; nothing if the configuration gives the schedule."""
    if choice is None:
        return []
    first = choice.prediction.remaining_s
    alike: dict[tuple[str, float, int], list[Schedule]] = {}
    for p in ranked(choice):
        alike.setdefault((p.schedule.paradigm, p.remaining_s, p.num_rounds), []).append(p.schedule)
    rows = [
        [
            "*" if choice.schedule in schedules else "",
            paradigm,
            _different(str(s.delta) for s in schedules if s.delta is not None),
            _different(f"{s.alpha:g}" for s in schedules if s.alpha is not None),
            duration_text(seconds) if has_size else "-",
            f"{100.0 * (seconds / first - 1.0):+.0f}%" if first > 0.0 else "-",
            str(num_rounds),
        ]
        for (paradigm, seconds, num_rounds), schedules in alike.items()
    ]
    headers = ("", "schedule", "delta", "alpha", "wall time", "compared", "rounds")
    return [
        "Schedules that 'auto' compares, if every DNN trains to its max_epochs (* is chosen; the run",
        "compares again when enough DNNs are over):",
        *format_table(headers, rows, right=(4, 5, 6)),
        "",
    ]


def _different(texts: Iterable[str]) -> str:
    """`100%, 60%`: each text once; `-` if there is none."""
    return ", ".join(dict.fromkeys(texts)) or "-"


def _start_lines(plan: EnsemblePlan, command: Sequence[str]) -> list[str]:
    """The commands that start the run; the one for nodes with GPUs has its own heading if it differs."""
    lines = launch_lines(plan, command)
    has_both = {"srun", "srun on GPUs"} <= lines.keys()
    headings = {"mpirun": "start", "srun on GPUs": "or on GPUs" if has_both else "or"}
    width = max(len(headings.get(launcher, "or")) for launcher in lines)
    return [f"{headings.get(launcher, 'or').rjust(width)}: {line}" for launcher, line in lines.items()]


def _map_lines(plan: EnsemblePlan) -> list[str]:
    """Which DNN each slot of the first flotilla trains, one line per node: `node0  0:fast 1-3:half`."""
    width = max(len(node.host) for node in plan.cluster.nodes)
    lines = ["Slots of the first flotilla:"]
    for host, names in slot_map(plan, plan.flotillas[0]).items():
        slots_of: dict[str, list[int]] = {}
        for slot, name in enumerate(names):
            slots_of.setdefault(name or "free", []).append(slot)
        cells = (f"{_ranges(slots)}:{name}" for name, slots in slots_of.items())
        lines.append(f"  {host.ljust(width)}  {' '.join(cells)}")
    return lines


def _counts_text(counts: Sequence[int]) -> str:
    first, others = counts[0], set(counts[1:])
    if not others or others == {first}:
        return str(first)
    return f"{first} on the first, {' or '.join(map(str, sorted(others)))} on the others"


def _memory_lines(memory: NodeMemory, bytes_per_node: int | None) -> list[str]:
    text = f"memory per node: ring up to {bytes_text(memory.ring)}"
    if memory.cache:
        text += f" + cache of decoded samples {bytes_text(memory.cache)}"
    if memory.networks is None or memory.snapshots is None:
        names = ", ".join(memory.unknown[:_MAX_NAMES]) + (", ..." if len(memory.unknown) > _MAX_NAMES else "")
        text += f"; networks and checkpoints unknown: there is no checkpoint yet of {names}"
    else:
        text += (
            f" + {bytes_text(memory.networks)} networks (weights and optimizer, one copy per slot) + "
            f"{bytes_text(memory.snapshots)} checkpoints being written = {bytes_text(memory.known)}"
        )
    if bytes_per_node is None:
        return [text]
    over = memory.known - bytes_per_node
    if over <= 0:
        return [text, f"  fits into {bytes_text(bytes_per_node)}, counting what is known"]
    advice = "use fewer slots per node, or nodes with more memory"
    if memory.cache > over:
        advice = f"set dataplane.cache_bytes to {memory.cache - over} or less"
    elif memory.ring > over:
        advice = f"set dataplane.ring_bytes to {memory.ring - over} or less"
    return [text, f"  DOES NOT FIT into {bytes_text(bytes_per_node)}: {bytes_text(over)} too much; {advice}"]


def cache_lines(cache: PlannedCache | None) -> list[str]:
    """How many samples are decoded only once, and what another order of operations would give."""
    if cache is None:
        return []
    size = "" if cache.num_bytes is None else f"{bytes_text(cache.num_bytes)}, "
    if cache.facts is None:
        if cache.num_bytes is None:
            size = "at most half of what the node has left, "
        return [f"cache of decoded samples per node: {size}--open-data shows how many samples it holds"]
    need, other = cache.facts.need, cache.facts.with_resize_first
    if need is None:
        lines = ["cache of decoded samples per node: none, because random_crop comes before resize"]
    else:
        each = f"{bytes_text(need.entry_bytes)} for each of {count_text(need.num_samples, 'sample')}"
        if need.num_measured:
            each += f" (estimated from {count_text(need.num_measured, 'sample')})"
        if cache.hit_rate is None:
            assert cache.whole_bytes is not None
            whole = bytes_text(cache.whole_bytes)
            found = f"{whole} hold all, if /dev/shm has twice that left; --memory shows what it holds there"
        else:
            found = f"it finds {_percent(cache.hit_rate)} of them from the second pass on"
            if cache.hit_rate_of_all not in (None, cache.hit_rate):
                found += (
                    f", and {_percent(cache.hit_rate_of_all)} with the caches of all {cache.num_nodes} nodes"
                )
        lines = [f"cache of decoded samples per node: {size}{each}; {found}"]
        if cache.depends_on_shared_memory:
            lines.append(
                "  ring and cache lie in /dev/shm, which is taken to have half of the node's memory (Linux's "
                "default); df /dev/shm on a compute node shows what it has"
            )
    if other is not None:
        gain = f"{bytes_text(other.entry_bytes)} for each sample"
        if cache.rate_with_resize_first is not None:
            gain += f", and {_percent(cache.rate_with_resize_first)} found"
        lines.append(f"  resize before random_crop, which gives other samples, would take {gain}")
    return lines


def _percent(share: float) -> str:
    return f"{100.0 * share:.0f}%"


def _time_lines(prediction: PlanForecast | str) -> list[str]:
    if isinstance(prediction, str):
        return [f"wall time: unknown, because {prediction}"]
    profiling = f", {duration_text(prediction.profiling_s)} of it profiling" if prediction.profiling_s else ""
    in_rounds = f" in {count_text(prediction.num_rounds, 'round')}" if prediction.num_rounds else ""
    lines = [
        f"wall time: {duration_text(prediction.wall_time_s)}{in_rounds}"
        f"{profiling}, if every DNN trains to its max_epochs; "
        f"at least {duration_text(prediction.lower_bound_s)}"
    ]
    if prediction.costs is None:
        lines.append("  without the time to build, load and save networks, which the first run measures")
    if prediction.usable_s is None:
        return [*lines, "  no walltime is configured"]
    usable = duration_text(prediction.usable_s)
    difference = duration_text(abs(prediction.usable_s - prediction.wall_time_s))
    if prediction.fits:
        return [*lines, f"  fits into the walltime ({usable} before the clean stop), {difference} to spare"]
    if prediction.num_nodes_that_fit is None:
        more = f"no number of nodes up to {MOST_NODES_TRIED} is enough"
    else:
        more = f"{prediction.num_nodes_that_fit} such nodes would be enough"
    return [
        *lines,
        f"  DOES NOT FIT into the walltime ({usable} before the clean stop): {difference} too long; {more}, "
        f"or {prediction.num_starts} starts of the same command, which continues where it stopped",
    ]


def bytes_text(number: int) -> str:
    """`512 B`, `1.5 GiB`."""
    value, unit = float(number), 0
    while value >= 1024.0 and unit < len(_UNITS) - 1:
        value, unit = value / 1024.0, unit + 1
    return f"{value:.0f} {_UNITS[unit]}" if unit == 0 else f"{value:.1f} {_UNITS[unit]}"


def _table_rows(plan: EnsemblePlan, planned: PlannedFlotilla, index: int) -> list[list[str]]:
    flotilla = planned.flotilla
    rows: list[list[str]] = []
    members = zip(flotilla.dnn_ids, flotilla.num_slots, flotilla.rates_before, flotilla.rates, strict=True)
    for name, count, before, rate in members:
        first = not rows
        places = by_node(plan.cluster, planned.placement.slots[name])
        text = " ".join(f"{node}:{_ranges(slots)}" for node, slots in places.items())
        extra = f"{rate:.1f}" if rate != before else "-"
        rows.append(
            [
                str(index) if first else "",
                name,
                str(count),
                f"{before:.1f}",
                extra,
                text,
                str(planned.num_preprocessors) if first else "",
            ]
        )
    return rows


def _ranges(numbers: Sequence[int]) -> str:
    """`0-3,6` for 0, 1, 2, 3, 6 (ascending)."""
    parts: list[list[int]] = []
    for number in numbers:
        if parts and number == parts[-1][1] + 1:
            parts[-1][1] = number
        else:
            parts.append([number, number])
    return ",".join(str(a) if a == b else f"{a}-{b}" for a, b in parts)
