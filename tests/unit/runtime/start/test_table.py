"""The table of roles is complete, and roles themselves need no MPI."""

from __future__ import annotations

import subprocess
import sys

EVERY_ROLE_HAS_A_RECIPE = """
import mpi4py
mpi4py.rc.initialize = False  # the table is looked at, no role is played
from hpcbal.cluster.roles import RankInfo, assign_roles
from hpcbal.runtime.start.recipe import ROLES, recipe_of
roles = assign_roles([RankInfo(rank, 0, "host", rank, 0) for rank in range(5)], 2, 1)
assert list(ROLES) == list(roles.ranks_by_role), (ROLES, list(roles.ranks_by_role))
for role in ROLES:
    assert recipe_of(role).__name__.lower() == f"{role}recipe"
"""

ROLES_NEED_NO_MPI = """
import sys
sys.modules["mpi4py"] = None  # as on a machine without it
import hpcbal.dataplane.maker, hpcbal.runtime.group.own_batches
import hpcbal.runtime.roles.scheduler, hpcbal.runtime.roles.preprocessor, hpcbal.runtime.roles.trainer
import hpcbal.runtime.roles.group_profile, hpcbal.runtime.roles.group_round
import hpcbal.runtime.start.scheduler
"""


def run(program: str) -> tuple[int, str]:
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=False
    )
    return done.returncode, done.stderr


def test_every_role_has_a_recipe() -> None:
    assert run(EVERY_ROLE_HAS_A_RECIPE) == (0, "")


def test_roles_can_be_imported_where_mpi_is_missing() -> None:
    assert run(ROLES_NEED_NO_MPI) == (0, "")
