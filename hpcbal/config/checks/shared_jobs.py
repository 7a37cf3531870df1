"""Checks across the keys of many parameter-server jobs on the same machines."""

from __future__ import annotations

from hpcbal.config.checks.names import duplicate_names, items_of, keys_not_text, name_nodes
from hpcbal.config.schema.jobs import JobsConfig
from hpcbal.config.source.nodes import YamlNode
from hpcbal.config.source.shown import show
from hpcbal.config.source.suggest import did_you_mean

_MOST_NAMES = 8


def job_problems(root: YamlNode) -> list[str]:
    """Problems between sections of the written-out configuration `root`."""
    jobs = items_of(root, "jobs")
    return [
        *duplicate_names(root, "jobs", "job"),
        *keys_not_text([owner for job in jobs for owner in (job, job.get("data"))]),
        *_unknown_in_groups(root),
        *_speeds_without_times(root),
    ]


def _unknown_in_groups(root: YamlNode) -> list[str]:
    """Reject names in fixed groups that no job has."""
    names = list(dict.fromkeys(node.value for node in name_nodes(root, "jobs")))
    groups, rest = root.deepest(("schedule", "groups"))
    if rest or not groups.is_list or not names:
        return []
    members = [group.get("jobs") for group in groups.value]
    shown = ", ".join(names[:_MOST_NAMES])
    shown += f" and {len(names) - _MOST_NAMES} more" if len(names) > _MOST_NAMES else ""
    return [
        node.problem(
            f"got {show(node.value)}, which no job is{did_you_mean(node.value, names)}, allowed: {shown}"
        )
        for listed in members
        if listed is not None and listed.is_list
        for node in listed.value
        if isinstance(node.value, str) and node.value not in names
    ]


def _speeds_without_times(root: YamlNode) -> list[str]:
    """Reject emulated speeds where it is not known how long a job computes at speed 1."""
    without = [
        job
        for job in items_of(root, "jobs")
        if (time := job.get("seconds_per_sample")) is None or time.value is None
    ]
    if not without:
        return []
    name = without[0].get("name")
    which = "a job" if name is None else f"the job {show(name.plain())}"
    more = f" and {len(without) - 1} more" if len(without) > 1 else ""
    speeds = [speed for machine in items_of(root, "machines") if (speed := machine.get("speed")) is not None]
    return [
        speed.problem(
            f"got {speed.value} without seconds_per_sample of {which}{more}; give each job "
            "seconds_per_sample, the time of a sample at speed 1"
        )
        for speed in speeds
        if isinstance(speed.value, int | float) and speed.value != 1
    ]


def job_warnings(config: JobsConfig, root: YamlNode) -> list[str]:
    """A line for each key that is valid but has no effect.

    Args:
        config: the validated configuration.
        root: the written-out configuration that was validated.
    """
    lines: dict[str, None] = {}
    for job, node in zip(config.jobs, items_of(root, "jobs"), strict=True):
        min_delta, rest = node.deepest(("stop", "min_delta"))
        if not rest and job.stop.min_delta > 0 and job.stop.patience is None:
            lines[min_delta.problem(f"got {job.stop.min_delta}, which has an effect only with patience")] = (
                None
            )
        seconds = node.get("seconds_per_sample")
        if seconds is not None and job.seconds_per_sample is not None and not config.machines:
            given = f"got {job.seconds_per_sample}"
            lines[seconds.problem(f"{given}, which has an effect only with emulated machines")] = None
    return list(lines)
