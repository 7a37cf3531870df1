"""The recipe of every role; a rank loads only that of its own."""

from __future__ import annotations

from importlib import import_module

from hpcbal.cluster.roles import PREPROCESSOR, SCHEDULER, TRAINER
from hpcbal.runtime.start.recipe import Recipe

ROLES = (SCHEDULER, PREPROCESSOR, TRAINER)
"""The keys of `hpcbal.cluster.roles.Roles.ranks_by_role`; the order is the same on all ranks."""


def recipe_of(role: str) -> type[Recipe]:
    """Return the recipe of a role, from the module of its name."""
    found: type[Recipe] = import_module(f"hpcbal.runtime.start.{role}").RECIPE
    return found
