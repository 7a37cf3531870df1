"""Where an exported model goes: a `.keras` file or a directory, and its description beside it."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from hpcbal.config.checks.frameworks import Framework
from hpcbal.errors import InputError, OutputError
from hpcbal.telemetry.files.atomic_file import sync_directory

Format = Literal["keras", "tensorflow", "pt", "safetensors", "onnx", "pt2"]
OF_TORCH: tuple[Literal["pt", "safetensors", "onnx"], ...] = ("pt", "safetensors", "onnx")
"""Formats of PyTorch's modules, which are also how names of such files end."""

_OF_A_FILE = re.compile(r"\.(?:[a-z]{2,}\d*|h5)", re.IGNORECASE)
"""The end of a name that means a file: `model.txt` is none for a directory, but `model-1.2` is."""
_OF_SAVED_MODEL = "saved_model.pb"


@dataclass(frozen=True, slots=True)
class Destination:
    """A place for an exported model.

    Attributes:
        path: the file or directory.
        format: `tensorflow` for a directory, else how the name of the file ends.
    """

    path: Path
    format: Format

    @property
    def description(self) -> Path:
        """The description of the model, beside it."""
        return self.path.with_name(f"{self.path.name}.json")

    @contextlib.contextmanager
    def written_aside(self) -> Iterator[Path]:
        """A path to write the model to; when the block has ended well, it takes its place.

        Raises:
            OutputError: if the model cannot be put in its place.
        """
        aside = self.path.with_name(f".{self.path.name}.{os.getpid()}.tmp")
        if self.format != "tensorflow":
            aside = aside.with_name(f"{aside.name}.{self.format}")
        _remove(aside)
        try:
            yield aside
            self._put_in_place(aside)
        except OSError as error:
            raise OutputError(
                f"{self.path}: cannot write the model: {error.strerror or error}; free space, or choose "
                "another place with --to"
            ) from error
        finally:
            _remove(aside)

    def _put_in_place(self, aside: Path) -> None:
        for file in [aside] if aside.is_file() else aside.rglob("*"):
            if file.is_file():
                with open(file, "rb") as content:
                    os.fsync(content.fileno())
        if not self.path.is_dir():
            os.replace(aside, self.path)
        else:  # a directory cannot be replaced in one step
            old = self.path.with_name(f".{self.path.name}.{os.getpid()}.old")
            os.rename(self.path, old)
            os.rename(aside, self.path)
            shutil.rmtree(old)
        sync_directory(self.path.parent)


def destination_of(path: Path, framework: Framework, *, force: bool) -> Destination:
    """Check where a model shall go.

    Args:
        path: ends in `.keras` for a file of Keras, or in `.pt`, `.safetensors` or `.onnx` for one of
            PyTorch; a Keras model without such an end is a directory.
        framework: of the model.
        force: whether a model that is there already may be replaced.

    Raises:
        InputError: if it cannot go there.
    """
    suffix = path.suffix.lower()
    kind: Format
    if framework == "torch":
        if suffix.removeprefix(".") not in OF_TORCH:
            raise InputError(
                f"--to: got {path}, allowed for a module of PyTorch: a name that ends in .pt or .safetensors "
                "(the state_dict) or in .onnx (the network)"
            )
        kind = OF_TORCH[OF_TORCH.index(suffix[1:])]
    elif suffix != ".keras" and _OF_A_FILE.fullmatch(path.suffix):
        raise InputError(
            f"--to: got {path}, allowed for a Keras model: a name that ends in .keras (a file of Keras), or "
            f"one without {path.suffix} (a directory, a TensorFlow SavedModel)"
        )
    else:
        kind = "keras" if suffix == ".keras" else "tensorflow"
    return _checked(Destination(path, kind), force=force)


def ensemble_destination_of(path: Path, frameworks: Collection[Framework], *, force: bool) -> Destination:
    """Check where an ensemble shall go as one model; as `destination_of`.

    Args:
        path: ends in `.pt2` for a program of `torch.export`, `.onnx` or `.keras`; or it is a directory.
        frameworks: of the members.
        force: whether a model that is there already may be replaced.
    """
    suffix = path.suffix.lower()
    if suffix in (".pt2", ".onnx"):
        return _checked(Destination(path, "onnx" if suffix == ".onnx" else "pt2"), force=force)
    is_file = _OF_A_FILE.fullmatch(path.suffix) is not None
    if "torch" in frameworks or (is_file and suffix != ".keras"):
        of_keras = "" if "torch" in frameworks else ", .keras, or a name without an end (a SavedModel)"
        why = " with members of PyTorch" if "torch" in frameworks else " of Keras models"
        raise InputError(
            f"--to: got {path}, allowed for an ensemble{why}: a name that ends in .onnx or .pt2 (a program "
            f"of torch.export){of_keras}"
        )
    return _checked(Destination(path, "keras" if is_file else "tensorflow"), force=force)


def _checked(place: Destination, *, force: bool) -> Destination:
    """Return the place, if a model may go there."""
    path, kind = place.path, place.format
    if not path.parent.is_dir():
        raise InputError(f"--to: {path.parent} is not a directory; make it first, or choose another place")
    if kind != "tensorflow" and path.is_dir():
        instead = ", or a name without .keras" if kind == "keras" else ""
        raise InputError(f"--to: {path} is a directory; give a file{instead}")
    if kind == "tensorflow" and path.exists() and not (path / _OF_SAVED_MODEL).is_file():
        raise InputError(f"--to: {path} exists and is no SavedModel; choose another name")
    there = [each for each in (path, place.description) if os.path.lexists(each)]
    if there and not force:
        raise InputError(f"--to: {there[0]} exists; choose another name, or replace it with --force")
    return place


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    else:
        with contextlib.suppress(FileNotFoundError):
            path.unlink()
