"""The keys of samples that are held out: datasets for validation and for the test, and a fraction."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hpcbal.config.schema.run import DatasetConfig
from hpcbal.config.schema.section import ARGS_ALLOWED, IMPORT_ALLOWED, ImportPath, Section, key, wrong

DEFAULT_VALIDATION_FRACTION = 0.2
SECTION_ALLOWED = "null, or {dataset: package.module:callable, args: {...}}"
TEST_FRACTION_ALLOWED = "0 <= test_fraction < 1"


class HeldOutConfig(Section):
    """A dataset that holds samples of the same kind as `data.dataset`, none of them trained."""

    dataset: ImportPath | None = key(
        None, "Callable that returns the dataset; null: that of data.dataset.", f"null or {IMPORT_ALLOWED}"
    )
    args: Mapping[str, Any] = key({}, "Arguments of the dataset's callable.", ARGS_ALLOWED)

    def path_beside(self, trained: DatasetConfig) -> str:
        """The import path of its callable, beside the dataset that trains."""
        return trained.dataset if self.dataset is None else self.dataset


def check_held_out(
    trained: DatasetConfig,
    validation: HeldOutConfig | None,
    validation_fraction: float,
    test: HeldOutConfig | None,
    test_fraction: float,
) -> None:
    """Check that each held-out set is given once, and is not the training data itself.

    Raises:
        PydanticCustomError: otherwise; shown at the key that is wrong.
    """
    if validation is not None and validation_fraction not in (0.0, DEFAULT_VALIDATION_FRACTION):
        raise wrong(
            "validation_fraction",
            f"got {validation_fraction} beside data.validation; keep one of them",
        )
    if test is not None and test_fraction > 0.0:
        raise wrong("test_fraction", f"got {test_fraction} beside data.test; keep one of them")
    for name, section in (("validation", validation), ("test", test)):
        if section is not None and _callables(section, trained) == (trained.dataset, trained.args):
            raise wrong(
                name,
                "got the dataset and args of data.dataset, allowed: other samples than those that train; to "
                f"hold out a part of them, set data.{name}_fraction",
            )
    if validation is None and validation_fraction + test_fraction >= 1.0:
        raise wrong(
            "test_fraction",
            f"got {test_fraction} with validation_fraction {validation_fraction}, allowed: together less "
            "than 1, so that samples are left for training",
        )


def _callables(section: HeldOutConfig, trained: DatasetConfig) -> tuple[str, Mapping[str, Any]]:
    return section.path_beside(trained), section.args
