"""The base classes of all events, instructions and facts, which are the lines of a ledger."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from typing import Annotated, Any, ClassVar, TypeAlias


class _NullIsNan:
    """Makes pydantic read null as NaN; pydantic is not imported here, because it takes long to load."""

    @staticmethod
    def __get_pydantic_core_schema__(source: Any, handler: Any) -> Any:
        from pydantic_core import core_schema

        def read(value: Any, check: Any) -> Any:
            return math.nan if value is None else check(value)

        return core_schema.no_info_wrap_validator_function(read, handler(source))


Number: TypeAlias = Annotated[float, _NullIsNan]
"""A number that is null in the file, and NaN for readers, if it is not finite: a measurement that failed."""


IN_FILE = {"dnn_id": "dnn", "dnn_ids": "dnns"}
"""Fields that have another name in the file."""


def name_in_file(field_name: str) -> str:
    """Return the name of a field in the file."""
    return IN_FILE.get(field_name, field_name)


class Facts:
    """Base of the frozen values inside a line.

    Decoding is strict: unknown fields and text instead of a number are rejected. `None` is JSON's null,
    except for a `Number`.
    """

    __slots__ = ()
    __pydantic_config__: ClassVar[Any] = {
        "strict": True,
        "extra": "forbid",
        "allow_inf_nan": False,
        "alias_generator": name_in_file,
    }
    __dataclass_fields__: ClassVar[dict[str, Any]]

    @classmethod
    def field_names(cls) -> tuple[str, ...]:
        """Names of the fields, in order."""
        return tuple(field.name for field in fields(cls))


class Line(Facts):
    """Base of all lines; each kind is one frozen dataclass.

    Attributes:
        event: the kind's name in the file; empty if it is not written there.
    """

    __slots__ = ()
    event: ClassVar[str] = ""

    def reached(self) -> tuple[str, object] | None:
        """Return what has got how far, if the line records work that a later start need not repeat."""
        return None


@dataclass(frozen=True, slots=True)
class Event(Line):
    """Base class of all events."""


@dataclass(frozen=True, slots=True)
class Instruction(Line):
    """Base class of all instructions."""
