"""The base of every section of a configuration, how a key is declared, and values with units."""

from __future__ import annotations

import math
import re
from typing import Annotated, Any, ClassVar

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator
from pydantic.config import JsonDict
from pydantic_core import PydanticCustomError

_BYTES_PER_UNIT = {
    "": 1,
    "B": 1,
    "KB": 10**3,
    "MB": 10**6,
    "GB": 10**9,
    "TB": 10**12,
    "KIB": 2**10,
    "MIB": 2**20,
    "GIB": 2**30,
    "TIB": 2**40,
}
_SIZE = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]*)\s*", re.ASCII)
_CLOCK = re.compile(r"(\d{1,9}):([0-5]\d):([0-5]\d)", re.ASCII)
_PERCENT = re.compile(r"\s*(\d+(?:\.\d+)?)\s*%\s*", re.ASCII)


def parse_bytes(value: Any) -> Any:
    """Turn `"256MiB"` into bytes; return anything other than text unchanged.

    Args:
        value: an int, or text of a number and a unit (B, KB, MB, GB, TB, KiB, MiB, GiB, TiB).

    Raises:
        ValueError: if the text is not a size, or one that no computer has.
    """
    if not isinstance(value, str):
        return value
    match = _SIZE.fullmatch(value)
    if match is None or match[2].upper() not in _BYTES_PER_UNIT:
        raise ValueError(f"{value!r} is not a size")
    size = float(match[1]) * _BYTES_PER_UNIT[match[2].upper()]
    if not math.isfinite(size):
        raise ValueError(f"{value!r} is too large")
    return int(size)


def parse_duration_s(value: Any) -> Any:
    """Turn `"HH:MM:SS"` into seconds; return anything other than text unchanged.

    Raises:
        ValueError: if the text has another form.
    """
    if not isinstance(value, str):
        return value
    match = _CLOCK.fullmatch(value.strip())
    if match is None:
        raise ValueError(f"{value!r} is not HH:MM:SS")
    return float(int(match[1]) * 3600 + int(match[2]) * 60 + int(match[3]))


def percent_of(text: str) -> float:
    """The share, >= 0, that text such as `"15%"` stands for.

    Raises:
        ValueError: if the text has another form, or the share is not finite.
    """
    match = _PERCENT.fullmatch(text)
    if match is None:
        raise ValueError(f"{text!r} is not a percentage")
    share = float(match[1]) / 100.0
    if not math.isfinite(share):
        raise ValueError(f"{text!r} is too large")
    return share


CUSTOM_ERROR = "hpcbal"
_DIRECTORY_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+=,@-]*")
IMPORT_PATTERN = r"^[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*:[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*$"
_IMPORT_PATH = re.compile(IMPORT_PATTERN)
MAX_NAME_LENGTH = 100

MOST = 10**9
"""The largest number where a key has no limit of its own: beyond it, arithmetic on numbers ends."""
LEAST = 1e-12
"""The smallest of the numbers with a fraction that must be above 0."""
MAX_PATH_BYTES = 3500
_MAX_PART_BYTES = 255
NAME_ALLOWED = (
    f"a directory name of letters, digits and . _ + = , @ - that starts with a letter or digit, "
    f"at most {MAX_NAME_LENGTH} characters"
)
COUNT_ALLOWED = "a whole number, 1 or more"
COUNT_OR_NULL_ALLOWED = "null or a whole number, 1 or more"
ARGS_ALLOWED = "a mapping of argument names to values"
PATH_ALLOWED = f"a path of printable characters, at most {_MAX_PART_BYTES} bytes in each part"
IMPORT_ALLOWED = "an import path package.module:callable"


class Section(BaseModel):
    """Strict, frozen group of keys. A section that is empty in the file has its defaults.

    Attributes:
        file_only_keys: further keys that a file may hold; they are resolved before the section is validated.
        sweep_keys: further keys that the file may hold where the section is the body of a sweep.
        also_allowed: what else may be a key, for messages.
    """

    file_only_keys: ClassVar[tuple[str, ...]] = ()
    sweep_keys: ClassVar[tuple[str, ...]] = ()
    also_allowed: ClassVar[str] = ""

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        strict=True,
        allow_inf_nan=False,
        protected_namespaces=(),
        defer_build=True,  # most processes only receive sections, and build no validators
    )

    @model_validator(mode="before")
    @classmethod
    def _empty_means_defaults(cls, value: Any) -> Any:
        return {} if value is None else value


def key(
    default: Any,
    about: str,
    allowed: str,
    *,
    may_change: bool | None = None,
    may_grow: bool = False,
    may_move: str = "",
    **constraints: Any,
) -> Any:
    """Declare a key; a number with a lower limit gets an upper one, too (`MOST`).

    Args:
        default: default value; `...` if the user must give one.
        about: what the key does, in one sentence for the reference and the JSON schema.
        allowed: which values are allowed, for error messages.
        may_change: whether it may change, with all below it, when a run is resumed; None: as the key above
            it, and at the top it may not.
        may_grow: whether it may grow then.
        may_move: the key below it whose paths may change then, if they lead to the same data.
        **constraints: arguments of pydantic's `Field` (gt, ge, lt, le, min_length, default_factory, alias).
    """
    if ("ge" in constraints or "gt" in constraints) and not {"le", "lt"} & constraints.keys():
        constraints["le"] = MOST
    if isinstance(constraints.get("gt"), float):
        constraints["ge"] = LEAST
    marks = {"may_change": may_change, "may_grow": may_grow or None, "may_move": may_move or None}
    extra: JsonDict = {"allowed": allowed, **{name: mark for name, mark in marks.items() if mark is not None}}
    if "default_factory" in constraints:
        return Field(description=about, json_schema_extra=extra, **constraints)
    return Field(default, description=about, json_schema_extra=extra, **constraints)


def wrong(key_name: str, message: str) -> PydanticCustomError:
    """Make an error for a check over several keys of a section, to be raised and shown at `key_name`."""
    return PydanticCustomError(CUSTOM_ERROR, "{message}", {"message": message, "key": key_name})


def not_empty(value: tuple[Any, ...]) -> tuple[Any, ...]:
    """Refuse a list without items; the message says what is allowed."""
    if not value:
        raise ValueError("empty")
    return value


def is_directory_name(text: str) -> bool:
    """Whether a run or a DNN may have this name."""
    return _DIRECTORY_NAME.fullmatch(text) is not None and len(text) <= MAX_NAME_LENGTH


def _directory_name(value: str) -> str:
    if not is_directory_name(value):
        raise ValueError("not usable as a directory name")
    return value


def is_import_path(text: str) -> bool:
    """Whether this has the form `package.module:name`, whatever is there."""
    return _IMPORT_PATH.fullmatch(text) is not None and len(text) <= _MAX_PART_BYTES


def _import_path(value: str) -> str:
    if not is_import_path(value):
        raise ValueError("not an import path")
    return value


def _path(value: str) -> str:
    parts = value.split("/")
    if not value.isprintable() or len(value.encode()) > MAX_PATH_BYTES:
        raise ValueError("not usable as a path")
    if any(len(part.encode()) > _MAX_PART_BYTES for part in parts):
        raise ValueError("a part of it is too long")
    return value


DirectoryName = Annotated[str, AfterValidator(_directory_name)]
ImportPath = Annotated[str, AfterValidator(_import_path)]
PathText = Annotated[str, AfterValidator(_path)]
