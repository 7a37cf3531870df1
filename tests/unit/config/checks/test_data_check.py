"""`validate` warns of data that is not on this machine; it may be on those of the run."""

from __future__ import annotations

from pathlib import Path

import pytest

from hpcbal.config import load_config
from hpcbal.config.source.nodes import show

UNSET = (
    "but the environment variable NOPE is not set here; set it, or write "
    "the value out; a plain $ is written $$"
)
MISSING = "but there is no such file or directory"
ENSEMBLE = """\
defaults: {{optimizer: {{name: sgd, learning_rate: 0.1}}, batch_size: 4, stop: {{max_epochs: 2}}}}
dnns: [{{name: a, model: "hpcbal.models:softmax"}}]
data:
  dataset: {dataset}
  args: {args}
"""
JOBS = """\
kind: jobs
jobs:
  - name: a
    app: hpcbal.paramserver.apps:MLR
    mini_batch: 5
    data:
      dataset: {dataset}
      args: {args}
"""


def warnings(folder: Path, text: str, args: str, dataset: str = "own:Rows") -> list[str]:
    path = folder / "run.yaml"
    path.write_text(text.format(dataset=dataset, args=args), encoding="utf-8")
    lines: list[str] = []
    load_config(path, warn=lines.append, beforehand=True)
    return [line.removeprefix(f"{path}:") for line in lines if "args" in line]


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (
            "{path: $NOPE/x.h5}",
            f"5: data.args.path: got '$NOPE/x.h5', {UNSET}",
        ),
        (
            "{names: [a, $NOPE]}",
            f"5: data.args.names.1: got '$NOPE', {UNSET}",
        ),
        (
            "{path: gone.h5}",
            f"5: data.args.path: got 'gone.h5', {MISSING} in {{here}} on this machine",
        ),
        (
            "{train_dir: /gone/x}",
            f"5: data.args.train_dir: got '/gone/x', {MISSING} on this machine",
        ),
        (
            "{path: ~nobody-here/x.h5}",
            "5: data.args.path: got '~nobody-here/x.h5', but there is no such user on this machine",
        ),
        (
            f"{{path: {300 * 'x'}}}",
            f"5: data.args.path: got {show(300 * 'x')}, which cannot be looked at here (File name too long)",
        ),
        ("{path: there.h5}", None),
        ("{path: $HERE/there.h5}", None),
        ("{path: 's3://bucket/gone', label: gone, root: 3, file: 'part-*.csv'}", None),
    ],
)
def test_what_leads_nowhere_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, args: str, said: str | None
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HERE", str(tmp_path))
    monkeypatch.delenv("NOPE", raising=False)
    Path("there.h5").touch()
    expected = [] if said is None else [said.replace("{here}", str(tmp_path))]
    assert warnings(tmp_path, ENSEMBLE, args) == expected


def test_held_out_data_and_the_data_of_jobs_are_looked_at(tmp_path: Path) -> None:
    held_out = ENSEMBLE + "  validation: {{args: {{path: /gone/val}}}}\n"
    (line,) = warnings(tmp_path, held_out, "{}", "hpcbal.data:image_folder")
    assert line.startswith("6: data.validation.args.path: got '/gone/val', but there is no such file")
    (line,) = warnings(tmp_path, JOBS, "{path: /gone/a}")
    assert line.startswith("8: jobs.0.data.args.path: got '/gone/a', but there is no such file")


def test_the_path_of_load_dataset_may_be_a_kind_of_files(tmp_path: Path) -> None:
    args = "{path: parquet, data_dir: /gone}\n  test: {args: {path: csv}}"
    found = warnings(tmp_path, ENSEMBLE, args, "datasets:load_dataset")
    assert found == [f"5: data.args.data_dir: got '/gone', {MISSING} on this machine"]
    (line,) = warnings(
        tmp_path, ENSEMBLE, "{path: parquet}\n  test: {dataset: 'datasets:load_dataset', args: {path: csv}}"
    )
    assert line.startswith("5: data.args.path: got 'parquet'")
