"""The values that `init` takes, and those that it refuses."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import TypeAdapter, ValidationError

from hpcbal.config.schema.dnn import Init, InitConfig

INIT: TypeAdapter[InitConfig] = TypeAdapter(Init)


@pytest.mark.parametrize(
    ("given", "source", "dnn"),
    [
        ("model.keras", "model.keras", None),
        ("dir:x/model.weights.h5", "dir:x/model.weights.h5", None),
        ("runs/base:a", "runs/base", "a"),
        ({"from": "runs/base", "dnn": "a", "prefix": "encoder."}, "runs/base", "a"),
    ],
)
def test_a_text_is_short_for_a_mapping(given: Any, source: str, dnn: str | None) -> None:
    init = INIT.validate_python(given)
    assert (init.source, init.dnn) == (source, dnn)
    assert INIT.validate_python(init.model_dump(by_alias=True)) == init


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("runs/base", "got nothing, allowed: the name of a DNN of the run in 'runs/base'"),
        ({"from": "m.keras", "dnn": "a"}, "got 'a', allowed with a file: leave it out"),
        ({"from": "m.weights.h5", "weights": "best"}, "got 'best', allowed with a file"),
        ({"from": "m.keras", "layers": [""]}, "at least 1 character"),
        ({"from": "m.keras", "prefix": "a/"}, "got 'a/', allowed with a file of Keras: leave it out"),
        ({"dnn": "a"}, "Field required"),
    ],
)
def test_what_names_no_source_is_refused(given: Any, message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        INIT.validate_python(given)
