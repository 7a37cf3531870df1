"""A simulated run as report values, so that it gets the same page as a real run."""

from __future__ import annotations

import dataclasses

import hpcbal
from hpcbal.control import INDEPENDENT
from hpcbal.report import JobReport, Overhead, ReportData, RoundReport, SlotSpan, SlotUse
from hpcbal.report.model import Preprocessing
from hpcbal.report.reading.replay import slot_names
from hpcbal.simulator import RoundRecord, Scenario, SimulatedRun, cluster_of
from hpcbal.simulator.record import PROFILE, SAVE, START, TRAIN, WAIT

_USE_OF_KIND = {
    TRAIN: "training",
    WAIT: "peers",
    SAVE: "checkpoint",
    START: "starting",
    PROFILE: "profiling",
}


def report_of(scenario: Scenario, run: SimulatedRun, paradigm: str, seed: int) -> ReportData:
    """What the report shows about one simulated run."""
    epochs = scenario.draw(seed).epochs
    cluster = cluster_of(run.num_gpus, scenario.gpus_per_node)
    data = ReportData(
        name=scenario.name,
        kind="simulation",
        state="simulated",
        duration_s=run.makespan_s,
        slot_names=slot_names([(node.host, node.num_gpus) for node in cluster.nodes]),
        jobs=tuple(
            JobReport(
                dnn.dnn_id,
                "done",
                epochs[dnn.dnn_id],
                wall_time_s=dnn.running_s,
                slot_seconds=dnn.gpu_seconds,
            )
            for dnn in run.dnns
        ),
        rounds=() if paradigm == INDEPENDENT else tuple(_round(scenario, each) for each in run.rounds),
        spans=_spans(run),
        use=_use(run),
        preprocessing=Preprocessing(scenario.passes.preprocessing_samples_per_s),
        facts=(
            ("schedule", paradigm),
            ("slots", f"{run.num_gpus}, {scenario.gpus_per_node} per node"),
            ("seed", str(seed)),
            ("lower bound", f"{run.lower_bound_s:.1f} s"),
            ("hpcbal", hpcbal.__version__),
        ),
    )
    scheduling = run.scheduling_s / run.makespan_s if run.makespan_s else 0.0
    overheads = (
        Overhead("profiling", data.use_share("profiling"), "measuring rates before the first round"),
        Overhead("scheduling", scheduling, "taking decisions; part of starting groups"),
        Overhead("starting groups", data.use_share("starting"), "from a round's start to its first step"),
        Overhead("checkpointing", data.use_share("checkpoint"), "writing when a DNN leaves a round"),
    )
    return dataclasses.replace(data, overheads=overheads)


def _round(scenario: Scenario, record: RoundRecord) -> RoundReport:
    seconds = record.end_s - record.start_s
    samples = record.num_passes * scenario.passes.num_positions
    return RoundReport(
        index=record.plan.index,
        start_s=record.start_s,
        end_s=record.end_s,
        num_jobs=len(record.plan.groups),
        num_preprocessors=record.plan.num_preprocessors,
        stream_samples_per_s=samples / seconds if seconds > 0.0 else None,
    )


def _spans(run: SimulatedRun) -> tuple[SlotSpan, ...]:
    """Which DNN held which slot: profiling runs, and DNNs from a round's start until they left it."""
    held = [
        SlotSpan(gpu, span.dnn_id, span.start_s, span.end_s, "profiling")
        for span in run.spans
        if span.kind == PROFILE
        for gpu in span.gpus
    ]
    for record in run.rounds:
        for group in record.plan.groups:
            end_s = record.start_s + record.running_s[group.dnn_id]
            held += [SlotSpan(gpu, group.dnn_id, record.start_s, end_s) for gpu in group.gpus]
    return tuple(held)


def _use(run: SimulatedRun) -> tuple[SlotUse, ...]:
    seconds = {use: run.gpu_seconds(kind) for kind, use in _USE_OF_KIND.items()}
    seconds["idle"] = run.idle_seconds()
    return tuple(
        SlotUse(gpu, {use: float(by_gpu[gpu]) for use, by_gpu in seconds.items()})
        for gpu in range(run.num_gpus)
    )
