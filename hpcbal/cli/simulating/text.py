"""Simulated schedules as a table and as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from hpcbal.simulator.comparison import Row
from hpcbal.simulator.costs import COST_NAMES
from hpcbal.simulator.learning_curves import LAW_OF_EVIDENCE
from hpcbal.simulator.scenario import Scenario
from hpcbal.telemetry.views.table import count_text, format_table

FORMAT = 1


def rows_to_dict(scenario: Scenario, rows: Sequence[Row], num_seeds: int) -> dict[str, Any]:
    """The rows as plain values; times are in seconds."""
    published = scenario.published
    return {
        "format": FORMAT,
        "name": scenario.name,
        "slots_per_node": scenario.slots_per_node,
        "num_seeds": num_seeds,
        "costs": asdict(scenario.costs),
        "kept_per_added_node": scenario.kept_per_added_node,
        "published": published.source if published is not None else None,
        "rows": [row.to_dict() for row in rows],
    }


def render_rows(scenario: Scenario, rows: Sequence[Row], num_seeds: int) -> list[str]:
    """The rows as text, line by line; for a single number of slots also the flotillas."""
    num_dnns = len(scenario.draw(0).specs)
    lines = [
        f"{scenario.name}: {count_text(num_dnns, 'DNN')}, nodes of "
        f"{count_text(scenario.slots_per_node, 'slot')}, mean of {count_text(num_seeds, 'seed')}, seconds",
        "",
        *_main_table(scenario, rows),
        "",
        *_cost_lines(scenario),
        "speed-up over independent; bound: max(work on one slot each / slots, longest DNN at its best);",
        "wait: slots without a DNN; lock-step: slots that wait for the stream; run length: DNNs, in rounds",
    ]
    if scenario.settings.prune is not None:
        lines.append(f"pruning compares curves drawn per seed: {scenario.curves}")
        if scenario.settings.prune.needs_evidence:
            lines.append(f"and {LAW_OF_EVIDENCE}")
        lines.append("epochs: trained, over those without pruning")
    if len({row.slots for row in rows}) == 1:
        for row in rows:
            if row.paradigm != "independent" and row.flotillas:
                lines += ["", *_flotilla_table(row)]
    return lines


def _cost_lines(scenario: Scenario) -> list[str]:
    values = {name: getattr(scenario.costs, name) for name in COST_NAMES}
    costs = [f"{name} {value:.3g}" for name, value in values.items() if value]
    if scenario.costs.start_s:
        costs.append(f"start_s by DNN, up to {max(scenario.costs.start_s.values()):.3g}")
    return [f"costs: {', '.join(costs)}"] if costs else ["costs: none; --cost NAME=SECONDS sets them"]


def _main_table(scenario: Scenario, rows: Sequence[Row]) -> list[str]:
    headers = ["slots", "schedule", "makespan", "speed-up", "bound", "wait/slot", "lock-step/slot", "rounds"]
    headers += ["run length", "scheduling", "checkpoints", "profiling"]
    has_published = any(row.published_s is not None for row in rows)
    if has_published:
        headers += ["published", "ours/published"]
    has_rule = any(row.unpruned_makespan_s is not None for row in rows)
    if has_rule:
        headers += ["pruned", "epochs", "unpruned makespan"]
    cells = []
    for row in rows:
        line = [
            str(row.slots),
            row.paradigm,
            f"{_seconds(row.makespan_s)} +- {_seconds(row.makespan_deviation_s)}",
            f"{row.speedup_vs_independent:.2f}",
            _seconds(row.lower_bound_s),
            _seconds(row.wait_s_per_slot),
            _seconds(row.lockstep_s_per_slot),
            f"{row.rounds:.0f}",
            f"{_seconds(row.running_mean_s)} +- {_seconds(row.running_deviation_s)}",
            *(
                f"{_seconds(seconds)} ({row.percent(seconds):.1f}%)"
                for seconds in (row.scheduling_s, row.checkpointing_s, row.profiling_s)
            ),
        ]
        if has_published and row.published_s is not None:
            line += [f"{row.published_s:.0f}", f"{row.makespan_s / row.published_s:.2f}"]
        elif has_published:
            line += ["-", "-"]
        if has_rule and row.unpruned_makespan_s is not None:
            saved = 1.0 - row.makespan_s / row.unpruned_makespan_s if row.unpruned_makespan_s else 0.0
            line += [f"{row.num_pruned:.1f}", f"{100.0 * row.epochs_share:.0f}%"]
            line.append(f"{_seconds(row.unpruned_makespan_s)} ({100.0 * saved:.0f}% saved)")
        cells.append(line)
    return format_table(headers, cells, right=[0, *range(2, len(headers))])


def _seconds(value: float) -> str:
    """Whole seconds; short times also with tenths."""
    return f"{value:.0f}" if value >= 100.0 else f"{value:.1f}"


def _flotilla_table(row: Row) -> list[str]:
    headers = ("round", "DNNs", "slots", "passes", "run length", "deviation")
    cells = [
        [
            str(flotilla.index),
            str(flotilla.num_dnns),
            str(flotilla.num_slots),
            str(flotilla.num_passes),
            f"{flotilla.mean_s:.1f}",
            f"{flotilla.deviation_s:.1f}",
        ]
        for flotilla in row.flotillas
    ]
    return [f"{row.paradigm}, first seed:", *format_table(headers, cells, right=range(len(headers)))]
