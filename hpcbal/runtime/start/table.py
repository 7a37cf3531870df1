"""The recipe of every role."""

from __future__ import annotations

from hpcbal.cluster.roles import PREPROCESSOR, SCHEDULER, TRAINER
from hpcbal.runtime.start.preprocessor import PreprocessorRecipe
from hpcbal.runtime.start.recipe import Recipe
from hpcbal.runtime.start.scheduler import SchedulerRecipe
from hpcbal.runtime.start.trainer import TrainerRecipe

RECIPES: dict[str, type[Recipe]] = {
    SCHEDULER: SchedulerRecipe,
    PREPROCESSOR: PreprocessorRecipe,
    TRAINER: TrainerRecipe,
}
"""Keys are those of `hpcbal.cluster.roles.Roles.ranks_by_role`; the order is the same on all ranks."""
