"""How the function that makes a user's model is called, and where what it prints goes."""

from __future__ import annotations

import logging
import subprocess
import sys
import threading
from types import SimpleNamespace
from typing import Any

import pytest

from hpcbal.data.spec import SampleSpec
from hpcbal.errors import InputError, UserCodeError
from hpcbal.training.user_model import hint_at_shapes, make_model

SAMPLE: Any = SimpleNamespace(shape=(4,))


def given(function: str, **args: Any) -> Any:
    return SimpleNamespace(name="a", model=f"{__name__}:{function}", args=args)


def of_args(shape: tuple[int, ...], num_classes: int, **args: Any) -> dict[str, Any]:
    return args


def chatty(shape: tuple[int, ...], num_classes: int, text: str, times: int = 1) -> Any:
    for _ in range(times):
        print(text)
    assert not sys.stdout.isatty()
    sys.stdout.buffer.write("ü".encode())
    subprocess.run([sys.executable, "-c", "pass"], stdout=sys.stdout, check=True)
    return sys.stdout


def failing(shape: tuple[int, ...], num_classes: int) -> None:
    print("just before")
    raise ValueError("no")


def first(shape: tuple[int, ...], num_classes: int) -> None:
    BEGUN[0].set()
    BEGUN[1].wait(0.3)


def second(shape: tuple[int, ...], num_classes: int) -> None:
    BEGUN[1].set()
    FIRST_HAS_ENDED.wait(5)


BEGUN, FIRST_HAS_ENDED = (threading.Event(), threading.Event()), threading.Event()


def test_threads_that_build_models_at_a_time_leave_stdout_as_it_was() -> None:
    before = sys.stdout

    def build_first() -> None:
        make_model(given("first"), SAMPLE.shape, 2)
        FIRST_HAS_ENDED.set()

    thread = threading.Thread(target=build_first)
    thread.start()
    assert BEGUN[0].wait(5)
    make_model(given("second"), SAMPLE.shape, 2)
    thread.join()
    assert sys.stdout is before


def test_variables_in_arguments_of_a_model_are_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HERE", "/here")
    monkeypatch.setenv("HOME", "/home/me")
    made = make_model(given("of_args", words=["$HERE/words.txt", "~/own.txt"], price="5$$"), SAMPLE.shape, 2)
    assert made == {"words": ["/here/words.txt", "/home/me/own.txt"], "price": "5$"}
    monkeypatch.delenv("HERE")
    with pytest.raises(InputError, match=r"DNN a: args\.path: got '\$HERE/x', but .* HERE is not set here"):
        make_model(given("of_args", path="$HERE/x"), SAMPLE.shape, 2)


def test_what_a_model_prints_is_logged_once_and_without_colors(
    caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    caplog.set_level(logging.INFO)
    for _ in range(2):
        make_model(given("chatty", text="\x1b[1mTotal params:\x1b[0m 650"), SAMPLE.shape, 2)
    assert caplog.messages == ["a: the model's function printed:\nTotal params: 650\nü"]
    assert capfd.readouterr().out == ""


def test_a_model_that_prints_much_does_not_fill_the_log(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    make_model(given("chatty", text="0123456789" * 100, times=100), SAMPLE.shape, 2)
    (message,) = caplog.messages
    assert len(message) < 20_000
    assert message.endswith(f"[{100 * 1001 + 2 - 2**14} more bytes were dropped]")


def test_what_a_model_prints_later_is_printed(capfd: pytest.CaptureFixture[str]) -> None:
    kept = make_model(given("chatty", text="early"), SAMPLE.shape, 2)
    print("late", file=kept, flush=True)
    assert capfd.readouterr().out == "late\n"


def test_what_a_model_printed_before_it_failed_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    with pytest.raises(UserCodeError, match="building it failed"):
        make_model(given("failing"), SAMPLE.shape, 2)
    assert "just before" in caplog.text


@pytest.mark.parametrize(
    ("message", "is_hinted"),
    [
        ("expected min_ndim=4, found ndim=3. Full shape received: (None, 6, 2)", True),
        ("Expected 3D (unbatched) or 4D (batched) input to conv2d, but got input of size: [3, 6, 2]", True),
        ("not enough values to unpack (expected 3, got 2)", True),
        ("Expected 2D array, got scalar array instead", False),
        ("KeyError: 'width'", False),
    ],
)
def test_only_an_error_about_axes_is_said_to_come_from_images_without_channels(
    message: str, is_hinted: bool
) -> None:
    with pytest.raises(UserCodeError) as caught, hint_at_shapes(SampleSpec.of((6, 2), "float32")):
        raise UserCodeError(message)
    assert ("give them an axis of channels" in str(caught.value)) is is_hinted
