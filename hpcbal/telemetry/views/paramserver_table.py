"""Show the status of a parameter-server job to users: its epochs, its objective, who does what."""

from __future__ import annotations

from hpcbal.telemetry.files.json_lines import duration_text
from hpcbal.telemetry.views.paramserver_status import ExecutorStatus, ParamServerStatus
from hpcbal.telemetry.views.status import KindView
from hpcbal.telemetry.views.summary import metric_words
from hpcbal.telemetry.views.table import cell_text, count_text, format_table, key_line, number_text


def place_of(status: ParamServerStatus) -> list[str]:
    """Parts of the headline: the epoch."""
    return [f"epoch {job['epochs']} of {job['max_epochs']}" for job in status["jobs"]]


def body_of(status: ParamServerStatus) -> list[str]:
    """The lines below the headline."""
    lines = [_roles_line(status["executors"])]
    if "reconfiguring" in status:
        lines.append(f"reconfiguring: {status['reconfiguring']}")
    for job in status["jobs"]:
        metric = job["main_metric"]
        values = {metric: job["metrics"].get(metric), f"best {metric_words(metric)}": job["best"]}
        values |= {name: value for name, value in job["metrics"].items() if name not in values}
        shown = ", ".join(f"{name} {number_text(value)}" for name, value in values.items())
        lines.append(f"{job['name']}: {job['state']}, {shown}, {duration_text(job['wall_time_s'])}")
        if job["cause"]:
            lines.append(f"{job['cause']}: {cell_text(' '.join(key_line(job['detail']).split()))}")
    headers = ("rank", "role", "data blocks", "parameter blocks")
    rows = [
        [str(each["rank"]), _role_text(each), str(each["data_blocks"]), str(each["parameter_blocks"])]
        for each in status["executors"]
    ]
    return [*lines, "", *format_table(headers, rows, right={0, 2, 3})]


def _roles_line(executors: list[ExecutorStatus]) -> str:
    workers = sum(each["role"] in ("worker", "both") for each in executors)
    servers = sum(each["role"] in ("server", "both") for each in executors)
    away = sum(not each["in_use"] for each in executors)
    idle = sum(each["role"] == "standby" and each["in_use"] for each in executors)
    line = f"{count_text(workers, 'worker')}, {count_text(servers, 'server')}"
    line += f", {idle} standing by" if idle else ""
    return f"{line}, {away} not in use" if away else line


def _role_text(executor: ExecutorStatus) -> str:
    """The role; of an executor that the job may not use, whether it has been emptied."""
    if executor["in_use"]:
        return executor["role"]
    return "not in use" if executor["role"] == "standby" else f"{executor['role']}, leaving"


VIEW = KindView(ParamServerStatus, place_of, body_of)
