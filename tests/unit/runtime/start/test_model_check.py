"""A mistake in all models of a callable refuses the run; a mistake in some is left to their training."""

from __future__ import annotations

import threading
from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from hpcbal.config import DnnConfig
from hpcbal.errors import InputError, UserCodeError
from hpcbal.runtime.start.trainer import ModelCheck, sentences


def dnn(name: str, model: str = "m:f") -> DnnConfig:
    return DnnConfig.model_validate(
        {
            "name": name,
            "model": model,
            "optimizer": {"name": "sgd", "learning_rate": 0.1},
            "batch_size": 1,
            "stop": {"max_epochs": 1},
        }
    )


class Exchange:
    """Gathers values of threads, as MPI gathers those of ranks."""

    def __init__(self, size: int) -> None:
        self._values: list[Any] = [None] * size
        self._barrier = threading.Barrier(size, timeout=20.0)

    def of(self, rank: int, value: Any) -> list[Any]:
        self._values[rank] = value
        self._barrier.wait()
        values = list(self._values)
        self._barrier.wait()
        return values


def check_on(
    num_ranks: int,
    dnns: Sequence[DnnConfig],
    errors: Mapping[str, Exception],
    unfinished: Mapping[str, bool] | None = None,
    joined: Collection[str] = (),
) -> tuple[str, list[str]]:
    """(the refusal, if any; the DNNs whose models were checked), with these errors by DNN."""
    exchange, checked = Exchange(num_ranks), []
    live = {dnn.name: False for dnn in dnns} if unfinished is None else unfinished

    def check(dnn: DnnConfig) -> None:
        checked.append(dnn.name)
        if dnn.name in errors:
            raise errors[dnn.name]

    def be(rank: int) -> str:
        log_file = Path("out/logs/rank-002.log")
        part = ModelCheck(check, rank, num_ranks, lambda value: exchange.of(rank, value), log_file)
        try:
            part.run(dnns, live, joined)
        except InputError as error:
            assert rank == 0
            return str(error)
        return ""

    with ThreadPoolExecutor(num_ranks) as ranks:
        refusals = list(ranks.map(be, range(num_ranks)))
    return refusals[0], sorted(checked)


def wrong(name: str, text: str = "it ends in softmax") -> InputError:
    return InputError(f"DNN {name}: {text}")


DNNS = [dnn(name) for name in "abcdef"]


@pytest.mark.parametrize("num_ranks", [1, 2, 4])
def test_one_right_model_is_enough_and_only_one_is_built(num_ranks: int) -> None:
    assert check_on(num_ranks, DNNS, {}) == ("", ["a"])


@pytest.mark.parametrize("num_ranks", [1, 2, 4])
def test_a_mistake_in_all_models_refuses_the_run_in_one_sentence(num_ranks: int) -> None:
    refusal, checked = check_on(num_ranks, DNNS, {dnn.name: wrong(dnn.name) for dnn in DNNS})
    assert refusal == "DNN a (and 5 more): it ends in softmax"
    assert checked == list("abcdef")


@pytest.mark.parametrize("num_ranks", [1, 2, 4])
@pytest.mark.parametrize("right", list("bcdef"))
def test_a_mistake_in_some_models_does_not_refuse_the_run(num_ranks: int, right: str) -> None:
    errors = {dnn.name: wrong(dnn.name) for dnn in DNNS if dnn.name != right}
    assert check_on(num_ranks, DNNS, errors)[0] == ""


@pytest.mark.parametrize("num_ranks", [1, 2, 4])
def test_each_callable_is_checked_before_its_round_comes(num_ranks: int) -> None:
    dnns = [dnn("a"), dnn("b", "m:g"), dnn("c"), dnn("d", "m:g"), dnn("e", "m:h"), dnn("f", "m:h")]
    assert check_on(num_ranks, dnns, {}) == ("", ["a", "b", "e"])
    refusal, checked = check_on(num_ranks, dnns, {name: wrong(name) for name in "abde"})
    assert refusal == "DNN b (and 1 more): it ends in softmax"  # c and f can be trained
    assert checked == list("abcdef")


@pytest.mark.parametrize("num_ranks", [1, 2])
def test_a_callable_of_which_a_dnn_has_ended_refuses_nothing_that_others_can_train(num_ranks: int) -> None:
    dnns = [dnn("a"), dnn("b"), dnn("c", "m:g")]
    errors = {"b": wrong("b")}
    assert check_on(num_ranks, dnns, errors, {"b": False, "c": False})[0] == ""
    assert check_on(num_ranks, dnns, errors, {"b": False, "c": True})[0] == ""
    assert check_on(num_ranks, dnns, errors, {"b": False})[0] == "DNN b: it ends in softmax"


def test_the_log_with_the_traceback_of_a_users_error_is_named() -> None:
    error = UserCodeError("DNN a: m.py:3: ValueError: no")
    assert check_on(1, DNNS[:1], {"a": error})[0] == f"{error} (traceback in out/logs/rank-002.log)"


def test_other_errors_are_left_to_the_training() -> None:
    assert check_on(2, DNNS, {dnn.name: MemoryError("too large") for dnn in DNNS})[0] == ""


def test_what_is_finished_is_not_checked() -> None:
    assert check_on(2, DNNS, {"a": wrong("a")}, {"c": False}) == ("", ["c"])
    assert check_on(2, DNNS, {"a": wrong("a")}, {}) == ("", [])


@pytest.mark.parametrize("num_ranks", [1, 2, 4])
def test_all_that_start_from_other_weights_are_checked_before_they_begin(num_ranks: int) -> None:
    dnns = [dnn("a"), *(dnn(name).model_copy(update={"freeze": ("x",)}) for name in "bcd")]
    unfinished = {"a": False, "b": False, "c": True, "d": False}
    assert check_on(num_ranks, dnns, {}, unfinished) == ("", ["b", "c", "d"])
    errors = {"d": wrong("d", "no layer x")}
    assert check_on(num_ranks, dnns, errors, unfinished)[0] == "DNN d: no layer x"


@pytest.mark.parametrize("num_ranks", [1, 3])
def test_a_run_that_resumes_is_refused_if_one_callable_has_changed(num_ranks: int) -> None:
    dnns = [dnn("a"), dnn("b"), dnn("c", "m:g"), dnn("d", "m:g"), dnn("e", "m:h")]
    unfinished = {"a": False, "b": True, "c": True, "d": True, "e": False}
    assert check_on(num_ranks, dnns, {}, unfinished) == ("", ["b", "c", "e"])
    refusal, _ = check_on(num_ranks, dnns, {"c": InputError("out/c: the model changed")}, unfinished)
    assert refusal == "DNN c: out/c: the model changed"


def test_dnns_that_have_joined_are_checked_only_if_they_have_begun() -> None:
    dnns = [dnn("a"), dnn("b", "m:g"), dnn("c", "m:h"), dnn("d", "m:i")]
    unfinished = {"a": False, "b": False, "c": True}
    errors = {name: wrong(name) for name in "bd"}
    assert check_on(2, dnns, errors, unfinished, "bcd") == ("", ["a", "c"])
    changed = {"c": InputError("out/c: the model changed")}
    assert check_on(2, dnns, changed, unfinished, "bcd")[0] == "DNN c: out/c: the model changed"
    own = [dnn("a"), dnn("b")]
    assert check_on(2, own, {name: wrong(name) for name in "ab"}, None, "b")[0] == "DNN a: it ends in softmax"


def test_different_problems_are_told_apart() -> None:
    problems = [("a", "DNN a: x"), ("b", "DNN b: y"), ("c", "DNN c: x")]
    assert sentences(problems) == "DNN a (and 1 more): x\nDNN b: y"
