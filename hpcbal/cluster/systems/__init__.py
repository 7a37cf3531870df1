"""The batch systems: one module for each, and the template of its scripts beside the shared body."""

from __future__ import annotations

import shutil
from collections.abc import Mapping

from hpcbal.cluster.systems.flux import FLUX
from hpcbal.cluster.systems.job import BatchJob, Phase, QueueState, SiteHabits, System
from hpcbal.cluster.systems.lsf import LSF
from hpcbal.cluster.systems.pbs import PBS
from hpcbal.cluster.systems.slurm import SLURM
from hpcbal.errors import ClusterError

SYSTEMS: Mapping[str, System] = {system.name: system for system in (SLURM, PBS, LSF, FLUX)}

__all__ = ["SYSTEMS", "BatchJob", "Phase", "QueueState", "SiteHabits", "System", "detect"]


def detect() -> System:
    """Return the batch system of this machine.

    Raises:
        ClusterError: if there is none.
    """
    found = next((system for system in SYSTEMS.values() if shutil.which(system.program)), None)
    if found is None:
        programs = ", ".join(f"{system.program} ({system.title})" for system in SYSTEMS.values())
        raise ClusterError(
            f"no batch system found: none of {programs} is on PATH; submit where jobs are submitted, or name "
            "the system with --system and --dry-run to see the script"
        )
    return found
