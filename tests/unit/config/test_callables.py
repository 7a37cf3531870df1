"""The contract of callables: what it refuses is what Python would refuse, and what a name gives away."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from itertools import chain, combinations
from typing import Any

import pytest

from hpcbal.config.callables import DATASET, MODEL, PER_SAMPLE, Contract, misfits

FUNCTIONS: list[Callable[..., Any]] = [
    lambda: None,
    lambda a: None,
    lambda a, b: None,
    lambda a, b, c: None,
    lambda a, b, c=1: None,
    lambda a, b, /, c=1: None,
    lambda a, b, *, c: None,
    lambda a, b, *, c=1: None,
    lambda a, b, **rest: None,
    lambda a, *rest, c: None,
    lambda *rest, **more: None,
]


@pytest.mark.parametrize("contract", [MODEL, DATASET], ids=lambda contract: contract.what)
@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda function: str(inspect.signature(function)))
def test_a_call_that_python_accepts_has_no_misfit_and_any_other_has_one(
    function: Callable[..., Any], contract: Contract
) -> None:
    signature = inspect.signature(function)
    names = ("a", "b", "c", "d")
    for given in chain.from_iterable(combinations(names, n) for n in range(len(names) + 1)):
        try:
            signature.bind(*contract.passed, **dict.fromkeys(given))
            is_accepted = True
        except TypeError:
            is_accepted = False
        found = misfits("m:f", signature, given, contract)
        assert (found == []) == is_accepted, (given, found)


def test_an_optional_width_in_the_place_of_the_shape_is_refused_although_python_accepts_it() -> None:
    (found,) = misfits("m:f", inspect.signature(lambda width=16, dropout=0.0: None), (), MODEL)
    assert not found.about_args
    assert "takes input_shape and num_classes first" in found.text


def test_all_wrong_and_all_missing_arguments_are_reported_together() -> None:
    found = misfits("m:f", inspect.signature(lambda a, b, depth, width: None), ("dept", "x"), MODEL)
    assert [misfit.key for misfit in found] == ["dept", "x", None]
    assert found[-1].text == "m:f needs the argument depth, width"


def test_a_remedy_is_python() -> None:
    (found,) = misfits("m:f", inspect.signature(lambda labels: None), (), PER_SAMPLE)
    assert "takes labels and outputs first; for example f(labels, outputs) (see" in found.text
