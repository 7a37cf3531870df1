"""`hpcbal status`: shows a run's status from its files, once or until it ends."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from hpcbal.cli import main
from hpcbal.cli import status as status_verb
from hpcbal.config import EnsembleConfig, load_of_kind
from hpcbal.config.submission import names_of, submission_yaml
from hpcbal.telemetry.views.ensemble_table import new_status
from hpcbal.telemetry.views.status import write_status

CONFIGS = Path(__file__).parents[3] / "configs"
Capture = pytest.CaptureFixture[str]


@pytest.fixture
def run_directory(tmp_path: Path) -> Path:
    write_status(tmp_path / "status.json", new_status("demo", 4))
    return tmp_path


def test_the_status_is_shown_once(run_directory: Path, capsys: Capture) -> None:
    assert main(["status", str(run_directory)]) == 0
    captured = capsys.readouterr()
    assert "demo" in captured.out
    assert captured.err == ""


def test_the_status_is_json(run_directory: Path, capsys: Capture) -> None:
    assert main(["status", str(run_directory), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["name"] == "demo"


@pytest.mark.parametrize("end", ["finished", "suspended"])
@pytest.mark.parametrize("options", [["--watch"], ["--watch", "--json"]])
def test_watching_ends_with_the_run(
    run_directory: Path, options: list[str], end: str, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    pauses: list[float] = []

    def sleep(seconds: float) -> None:
        pauses.append(seconds)
        status = new_status("demo", 4)
        if len(pauses) == 2:
            status["phase"] = end
        write_status(run_directory / "status.json", status)

    monkeypatch.setattr(time, "sleep", sleep)
    assert main(["status", str(run_directory), *options]) == 0
    assert pauses == [status_verb.REFRESH_S] * 2
    out = capsys.readouterr().out
    assert "\x1b" not in out
    if "--json" in options:
        assert [json.loads(line)["phase"] for line in out.splitlines()] == [
            "starting",
            "starting",
            end,
        ]
    else:
        assert out.count("demo") >= 3


def test_watching_waits_for_a_run_that_is_just_starting(
    tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has claimed its directory, and has no status yet."""
    pauses: list[float] = []

    def sleep(seconds: float) -> None:
        pauses.append(seconds)
        if len(pauses) == 2:
            status = new_status("demo", 4)
            status["phase"] = "finished"
            write_status(tmp_path / "status.json", status)

    (tmp_path / "config.yaml").write_text("", encoding="utf-8")
    monkeypatch.setattr(time, "sleep", sleep)
    assert main(["status", str(tmp_path), "--watch"]) == 2  # nobody holds it
    assert pauses == []
    (tmp_path / "run.lock").write_text("", encoding="utf-8")
    assert main(["status", str(tmp_path)]) == 2
    monkeypatch.setattr(status_verb, "STARTING_S", 0.0)
    assert main(["status", str(tmp_path), "--watch"]) == 2
    assert capsys.readouterr().err.count("no status.json") == 3
    monkeypatch.setattr(status_verb, "STARTING_S", 60.0)
    assert main(["status", str(tmp_path), "--watch"]) == 0
    assert len(pauses) == 2
    assert "demo" in capsys.readouterr().out


def test_watching_ends_if_the_run_was_killed(run_directory: Path, capsys: Capture) -> None:
    status = new_status("demo", 4, now=time.time() - 3600)
    status["host"] = "elsewhere"
    write_status(run_directory / "status.json", status, now=time.time() - 3600)
    assert main(["status", str(run_directory), "--watch"]) == 0
    assert "silent" in capsys.readouterr().out


def test_watching_can_be_interrupted(
    run_directory: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    def sleep(seconds: float) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(time, "sleep", sleep)
    assert main(["status", str(run_directory), "--watch"]) == 130
    assert capsys.readouterr().err == "hpcbal: interrupted\n"


def test_a_directory_without_a_run_is_refused(tmp_path: Path, capsys: Capture) -> None:
    file = tmp_path / "file"
    file.write_text("", encoding="utf-8")
    foreign = tmp_path / "foreign"
    foreign.mkdir()
    for path, message in (
        (tmp_path / "none", "no such directory; give the output directory of a run"),
        (file, "is a file; give the output directory of a run"),
        (foreign, "no status.json"),
    ):
        assert main(["status", str(path)]) == 2
        assert capsys.readouterr().err.startswith(f"hpcbal: {path}: {message}")


@pytest.mark.parametrize(("has_ended", "is_whole"), [(False, True), (True, True), (True, False)])
def test_what_has_joined_after_the_end_is_shown(
    run_directory: Path, has_ended: bool, is_whole: bool, capsys: Capture
) -> None:
    if has_ended:
        status = new_status("demo", 4)
        status["phase"] = "finished"
        write_status(run_directory / "status.json", status)
    config = load_of_kind(EnsembleConfig, CONFIGS / "digits_torch.yaml")
    text = submission_yaml(config, (), names_of(config)[1:])
    (run_directory / "submitted").mkdir()
    (run_directory / "submitted" / "0000.yaml").write_text(text if is_whole else "dnns: {", encoding="utf-8")
    assert main(["status", str(run_directory)]) == 0
    out = capsys.readouterr().out
    joins, is_damaged = f"to join at the next start: {config.dnns[0].name}" in out, "0000.yaml:" in out
    assert (joins, is_damaged) == (has_ended and is_whole, not is_whole)
