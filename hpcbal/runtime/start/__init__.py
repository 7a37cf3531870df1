"""How a rank comes into its role: one recipe per role, and the table of all of them."""

from __future__ import annotations

from collections.abc import Callable

from hpcbal.cluster.roles import PREPROCESSOR, SCHEDULER, TRAINER
from hpcbal.runtime.start.preprocessor import PreprocessorRecipe
from hpcbal.runtime.start.recipe import Recipe, Setting
from hpcbal.runtime.start.scheduler import SchedulerRecipe
from hpcbal.runtime.start.trainer import TrainerRecipe

__all__ = ["RECIPES", "Recipe", "Setting"]

RECIPES: dict[str, Callable[[Setting], Recipe]] = {
    SCHEDULER: SchedulerRecipe,
    PREPROCESSOR: PreprocessorRecipe,
    TRAINER: TrainerRecipe,
}
"""By the names of `hpcbal.cluster.roles.Roles.ranks_by_role`, in the same order on all ranks."""
