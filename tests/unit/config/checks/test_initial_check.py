"""`validate` warns of weights to start from that are not there."""

from __future__ import annotations

from pathlib import Path

import pytest

from hpcbal.config import load_config

TEXT = """\
defaults: {{optimizer: {{name: sgd, learning_rate: 0.1}}, batch_size: 4, stop: {{max_epochs: 2}}}}
dnns: [{{name: a, model: "hpcbal.models:softmax", init: "{init}"}}]
"""


def warnings(folder: Path, init: str) -> list[str]:
    path = folder / "run.yaml"
    path.write_text(TEXT.format(init=init), encoding="utf-8")
    lines: list[str] = []
    load_config(path, warn=lines.append, beforehand=True)
    return [line.partition("init: ")[2] for line in lines if "init: " in line]


@pytest.mark.parametrize(
    ("init", "said"),
    [
        ("gone.keras", "got gone.keras, but there is no such file"),
        ("there.keras", None),
        ("other:b", "got other, but that is not the output directory of a run"),
        ("run:c", "got run:c, but that run has no weights of c yet"),
        ("run:b", None),
        ("$RUNS/run:b", None),
        (
            "$GONE/run:b",
            "init.from: got '$GONE/run', but the environment variable GONE is not set here; set it, or write "
            "the value out; a plain $ is written $$",
        ),
    ],
)
def test_what_is_missing_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, init: str, said: str | None
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("RUNS", str(tmp_path))
    monkeypatch.delenv("GONE", raising=False)
    Path("there.keras").touch()
    Path("other").mkdir()
    Path("run/dnns/b").mkdir(parents=True)
    Path("run/dnns/c").mkdir()
    Path("run/config.yaml").touch()
    Path("run/dnns/b/best.h5").touch()
    assert warnings(tmp_path, init) == ([] if said is None else [said])
