"""Write the job scripts that are shipped, from the templates of `hpcbal submit`.

After a change of a template: python scripts/job_scripts.py
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from hpcbal.cluster.systems import SYSTEMS, BatchJob, SiteHabits
from hpcbal.cluster.systems.job import MOST_RESTARTS
from hpcbal.cluster.systems.script import render

ROOT = Path(__file__).parents[1]
ONE_NODE = BatchJob(
    "hpcbal",
    num_nodes=1,
    ranks_per_node=6,
    time_s=4 * 3600,
    cores_per_rank=8,
    gpus_per_node=4,
    max_restarts=MOST_RESTARTS,
)
JOBS = {"one_node": ONE_NODE, "several_nodes": replace(ONE_NODE, num_nodes=4)}
WITH_JSRUN = replace(
    JOBS["several_nodes"],
    ranks_per_node=8,
    cores_per_rank=5,
    gpus_per_node=6,
    site=SiteHabits(launcher="jsrun"),
)


def scripts() -> dict[Path, str]:
    """Return the text of each script."""
    found = {}
    for system in SYSTEMS.values():
        for name, job in JOBS.items():
            shown = WITH_JSRUN if (system.name, name) == ("lsf", "several_nodes") else job
            file = f"{name}{system.suffix}"
            found[ROOT / system.name / file] = render(system, shown, file)
    return found


if __name__ == "__main__":
    for path, text in scripts().items():
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8")
