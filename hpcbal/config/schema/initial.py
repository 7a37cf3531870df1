"""What a DNN starts from, and which of its layers stay as they are."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Strict, model_validator

from hpcbal.config.schema.section import PATH_ALLOWED, DirectoryName, PathText, Section, key, wrong

PATTERNS_ALLOWED = "a list of names of layers such as '[conv*, dense]'; * stands for any text"
INIT_ALLOWED = "null, or {file: PATH}, or {run: DIR, dnn: NAME}"
Patterns = Annotated[tuple[str, ...], Strict(False)]
FILE_ENDINGS = (".keras", ".weights.h5")


class InitConfig(Section):
    """Weights that a DNN starts from."""

    file: PathText | None = key(
        None, "A .keras or .weights.h5 file.", f"null or {PATH_ALLOWED}", min_length=1
    )
    run: PathText | None = key(
        None, "Output directory of another run.", f"null or {PATH_ALLOWED}", min_length=1
    )
    dnn: DirectoryName | None = key(None, "A DNN of that run; null: of the same name.", "null or its name")
    weights: Literal["best", "last"] | None = key(
        None, "Which weights of that run; null: the best if they are kept, else the last.", "null, best, last"
    )
    layers: Patterns | None = key(
        None,
        "Only the weights of these layers; null: all weights of the model.",
        f"null, or {PATTERNS_ALLOWED}",
    )

    @model_validator(mode="after")
    def _check(self) -> InitConfig:
        if (self.file is None) == (self.run is None):
            raise wrong("", f"got {'neither' if self.file is None else 'both'} file and run, allowed: one")
        if self.file is not None:
            if not self.file.endswith(FILE_ENDINGS):
                raise wrong(
                    "file", f"got {self.file!r}, allowed: a file that ends in {' or '.join(FILE_ENDINGS)}"
                )
            for name in ("dnn", "weights"):
                if getattr(self, name) is not None:
                    raise wrong(name, f"got {getattr(self, name)!r}, allowed with file: leave it out")
            if self.layers is not None and self.file.endswith(FILE_ENDINGS[1]):
                raise wrong("layers", "got some, allowed with a .weights.h5 file: null; use a .keras file")
        return self
