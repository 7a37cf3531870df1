"""The base classes of all lines of a ledger."""

from __future__ import annotations

from dataclasses import fields
from typing import Any, ClassVar


class Facts:
    """Base of the frozen values inside a line.

    Decoding is strict: unknown fields, text instead of a number, and NaN are rejected. `None` is JSON's null.
    """

    __slots__ = ()
    __pydantic_config__: ClassVar[Any] = {"strict": True, "extra": "forbid", "allow_inf_nan": False}
    __dataclass_fields__: ClassVar[dict[str, Any]]

    @classmethod
    def field_names(cls) -> tuple[str, ...]:
        """Names of the fields, in order."""
        return tuple(field.name for field in fields(cls))


class Line(Facts):
    """Base of all lines; each kind is one frozen dataclass.

    Attributes:
        event: the kind's name in the file.
    """

    __slots__ = ()
    event: ClassVar[str]
