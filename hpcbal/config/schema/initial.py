"""Where the weights of a DNN start, and which layers keep them."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, Strict, model_validator

from hpcbal import env
from hpcbal.config.schema.section import (
    NAME_ALLOWED,
    DirectoryName,
    PathText,
    Section,
    key,
    wrong,
)

KERAS_FILES = (".keras", ".weights.h5")
"""How the names of files that Keras writes end."""

PATTERNS_ALLOWED = "a list of names of layers, in which * stands for any text, such as '[stem, block_*]'"
INIT_ALLOWED = "null, FILE.keras, FILE.weights.h5, DIR:DNN of another run, or a mapping"

LayerPatterns = Annotated[tuple[Annotated[str, Field(min_length=1)], ...], Strict(False)]


def _from_text(value: Any) -> Any:
    """`FILE.keras` is short for `{from: FILE.keras}`, and `DIR:DNN` for `{from: DIR, dnn: DNN}`."""
    if not isinstance(value, str):
        return value
    directory, colon, name = value.rpartition(":")
    if colon and not value.endswith(KERAS_FILES):
        return {"from": directory, "dnn": name}
    return {"from": value}


class InitConfig(Section):
    """Weights that a DNN starts from instead of random ones."""

    source: PathText = key(
        ...,
        "A file of Keras, or the output directory of another run.",
        "FILE.keras, FILE.weights.h5, or a directory",
        alias="from",
        min_length=1,
    )
    dnn: DirectoryName | None = key(None, "Which DNN of the other run.", f"null, or {NAME_ALLOWED}")
    weights: Literal["best", "last"] | None = key(
        None, "Which weights of the other run; null: the best ones if they are kept.", "null, best, last"
    )
    layers: LayerPatterns = key((), "Layers that get these weights; empty: all.", PATTERNS_ALLOWED)
    skip: LayerPatterns = key((), "Layers that keep their random weights.", PATTERNS_ALLOWED)

    @property
    def path(self) -> Path:
        """The source, absolute, with variables replaced.

        Raises:
            InputError: if a variable is not set.
        """
        return Path(os.path.abspath(env.expanded(self.source, "init.from")))

    @property
    def is_keras_file(self) -> bool:
        """Whether the source is a file of Keras, and not a run."""
        return self.source.endswith(KERAS_FILES)

    @model_validator(mode="after")
    def _check(self) -> InitConfig:
        if self.is_keras_file:
            of_run: Mapping[str, str | None] = {"dnn": self.dnn, "weights": self.weights}
            for name, value in of_run.items():
                if value is not None:
                    raise wrong(name, f"got {value!r}, allowed with a file of Keras: leave it out")
        elif self.dnn is None:
            raise wrong(
                "dnn",
                f"got nothing, allowed: the name of a DNN of the run in {self.source!r} "
                f"(a file of Keras ends in {' or '.join(KERAS_FILES)})",
            )
        return self


Init = Annotated[InitConfig, BeforeValidator(_from_text)]
