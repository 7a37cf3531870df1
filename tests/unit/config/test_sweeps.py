"""Sweeps: every combination of `grid`, `zip` side by side, and errors at the sweep's own lines."""

from __future__ import annotations

from pathlib import Path

import pytest

from hpcbal.config import EnsembleConfig, load_config
from hpcbal.errors import ConfigError

HEAD = """\
defaults:
  optimizer: {name: sgd, learning_rate: 0.1, momentum: 0.9}
  batch_size: 32
  stop: {max_epochs: 10}
"""


def load(tmp_path: Path, sweep: str) -> EnsembleConfig:
    path = tmp_path / "run.yaml"
    path.write_text(HEAD + "sweeps:\n" + sweep, encoding="utf-8")
    return load_config(path)


def problems_of(tmp_path: Path, sweep: str) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        load(tmp_path, sweep)
    return [line.replace(f"{tmp_path}/", "") for line in caught.value.problems]


def test_a_grid_gives_every_combination(tmp_path: Path) -> None:
    sweep = """\
  - name: resnet-{depth}-w{width}
    model: m:f
    args: {stem: small}
    grid: {args.depth: [8, 14], args.width: [16, 32]}
"""
    dnns = load(tmp_path, sweep).dnns
    assert [dnn.name for dnn in dnns] == ["resnet-8-w16", "resnet-8-w32", "resnet-14-w16", "resnet-14-w32"]
    assert dnns[1].args == {"stem": "small", "depth": 8, "width": 32}
    assert dnns[1].optimizer.momentum == 0.9


def test_a_zip_pairs_its_values_inside_a_grid(tmp_path: Path) -> None:
    sweep = """\
  - name: "{model}-{learning_rate}-{batch_size}-{args.depth}"
    grid: {model: ["m:f", "m:g"]}
    zip: {optimizer.learning_rate: [0.1, 1e-3], batch_size: [8, 16], args.depth: [a, true]}
"""
    dnns = load(tmp_path, sweep).dnns
    assert [dnn.name for dnn in dnns] == ["f-0.1-8-a", "f-0.001-16-true", "g-0.1-8-a", "g-0.001-16-true"]
    assert dnns[3].optimizer.learning_rate == 1e-3
    assert (dnns[3].batch_size, dnns[3].optimizer.momentum) == (16, 0.9)


def test_keys_of_a_schedule_may_be_swept(tmp_path: Path) -> None:
    sweep = """\
  - name: own-{warmup}
    model: m:f
    optimizer: {name: adam, learning_rate: 0.1, schedule: {name: cosine, length: 8}}
    grid: {optimizer.schedule.warmup: [1, 2]}
  - name: args-{decay_steps}
    model: m:f
    optimizer: {name: adam, learning_rate: 0.1, schedule: {name: "m:Schedule"}}
    grid: {optimizer.schedule.args.decay_steps: [100]}
  - name: named-{schedule}
    model: m:f
    grid: {optimizer.schedule: [exponential, plateau]}
    stop: {patience: null, max_epochs: 20}
"""
    schedules = [dnn.optimizer.schedule for dnn in load(tmp_path, sweep).dnns]
    assert all(schedules)
    assert [(s.name, s.warmup, s.length) for s in schedules if s is not None][:2] == [
        ("cosine", 1, 8),
        ("cosine", 2, 8),
    ]
    assert [(s.name, dict(s.args)) for s in schedules if s is not None][2:] == [
        ("m:Schedule", {"decay_steps": 100}),
        ("exponential", {}),
        ("plateau", {}),
    ]


def test_a_swept_key_completes_a_schedule_that_is_only_named_in_the_defaults(tmp_path: Path) -> None:
    path = tmp_path / "run.yaml"
    head = HEAD.replace("momentum: 0.9", "schedule: cosine")
    sweep = "sweeps:\n  - {name: 'a{warmup}', model: m:f, grid: {optimizer.schedule.warmup: [0, 3]}}\n"
    path.write_text(head + sweep, encoding="utf-8")
    schedules = [dnn.optimizer.schedule for dnn in load_config(path).dnns]
    assert [(s.name, s.warmup) for s in schedules if s is not None] == [("cosine", 0), ("cosine", 3)]


def test_swept_sections_replace_and_complete(tmp_path: Path) -> None:
    sweep = """\
  - name: d{patience}
    model: m:f
    stop: {target: 0.9}
    grid: {stop.patience: [1, 2]}
"""
    dnns = load(tmp_path, sweep).dnns
    assert [(d.stop.target, d.stop.patience, d.stop.max_epochs) for d in dnns] == [(0.9, 1, 10), (0.9, 2, 10)]


WRONG = [
    (
        "name: r\n    grid: {args.depth: [1, 2]}",
        "run.yaml:6: sweeps.0.name: got 'r' for more than one DNN, allowed: "
        "a different name for each, e.g. with more {placeholders}",
    ),
    (
        "name: r{depht}\n    grid: {args.depth: [1, 2]}",
        "run.yaml:6: sweeps.0.name: got {depht} in the name, allowed: "
        "{args.depth}, {depth} (did you mean 'depth'?)",
    ),
    (
        "name: r{x}\n    grid: {args.x: [1], optimizer.x: [2]}",
        "run.yaml:6: sweeps.0.name: got {x} in the name, allowed: {args.x}, {optimizer.x}",
    ),
    (
        "name: r\n    grid: {args.depth: 3}",
        "run.yaml:7: sweeps.0.grid.args.depth: got 3, allowed: a list of at least",
    ),
    (
        "name: r\n    grid: {args.depth: []}",
        "run.yaml:7: sweeps.0.grid.args.depth: got [], allowed: a list of at",
    ),
    ("name: r\n    grid: [1]", "run.yaml:7: sweeps.0.grid: got [1], allowed: {dotted.key: [values]}"),
    ("name: r", "run.yaml:6: sweeps.0: sweeps nothing: give grid, zip or search, or list the DNN under dnns"),
    (
        "name: r\n    zip: {args.a: [1, 2], args.b: [1]}",
        "run.yaml:7: sweeps.0.zip: got lists of unequal length "
        "(args.a has 2, args.b has 1), allowed: equal lengths",
    ),
    (
        "name: r\n    grid: {args.a: [1]}\n    zip: {args.a: [1]}",
        "run.yaml:7: sweeps.0.grid: got args.a in grid and in zip, allowed: in one of them",
    ),
    (
        "name: r\n    grid: {name: [a, b]}",
        "run.yaml:7: sweeps.0.grid.name: allowed: keys of a DNN other than name",
    ),
    (
        "name: r{batch_size}\n    grid: {batch_size: [8, -1]}",
        "run.yaml:7: sweeps.0.grid.batch_size.1: got -1, allowed: a whole number, 1 or more",
    ),
    (
        "name: r{depht}\n    grid: {arg.depht: [8]}",
        "run.yaml:7: sweeps.0.grid.arg.depht: unknown key (did you mean 'args.depht'?)",
    ),
    (
        "name: r{width}\n    grid: {width: [8, 16]}",
        "run.yaml:7: sweeps.0.grid.width: unknown key (did you mean 'args.width'?), allowed: args.NAME",
    ),
    (
        "name: r{lr}\n    zip: {lr: [8, 16]}",
        "run.yaml:7: sweeps.0.zip.lr: unknown key (did you mean 'optimizer.learning_rate'?), allowed: ",
    ),
    (
        "name: r{m}\n    grid: {optimizer.momentun: [8, 16]}",
        "run.yaml:7: sweeps.0.grid.optimizer.momentun: unknown key (did you mean 'optimizer.momentum'?)",
    ),
    (
        "name: r{m}\n    grid: {optimizer.schedule.warmpu: [8, 16]}",
        "run.yaml:7: sweeps.0.grid.optimizer.schedule.warmpu: unknown key "
        "(did you mean 'optimizer.schedule.warmup'?)",
    ),
    (
        "name: r{a}\n    grd: {}\n    grid: {args.a: [8]}",
        "run.yaml:7: sweeps.0.grd: unknown key (did you mean 'grid'?)",
    ),
    (
        "name: r{a}\n    batch_size: 0\n    grid: {args.a: [8, 9]}",
        "run.yaml:7: sweeps.0.batch_size: got 0, allowed:",
    ),
    (
        "name: r{x}\n    grid: {model.x: [1]}",
        "run.yaml:7: sweeps.0.grid.model.x.0: model is 'm:f', not a section",
    ),
    (
        "name: r{a}\n    grid: {args.a: [x/y]}",
        "run.yaml:6: sweeps.0.name: got 'rx/y', allowed: a directory name of",
    ),
]


@pytest.mark.parametrize(("sweep", "message"), WRONG)
def test_a_wrong_sweep_is_reported_with_its_line(tmp_path: Path, sweep: str, message: str) -> None:
    found = problems_of(tmp_path, f"  - {sweep}\n    model: m:f\n")
    assert any(problem.startswith(message) for problem in found), found


def test_an_unknown_swept_key_is_reported_once_for_all_its_values(tmp_path: Path) -> None:
    sweep = "  - name: r{width}\n    model: m:f\n    grid: {width: [8, 16, 32], seed: [1, 2]}\n"
    (problem,) = problems_of(tmp_path, sweep)
    assert "sweeps.0.grid.width: unknown key" in problem


@pytest.mark.parametrize(
    ("key", "hint"),
    [
        ("depht", " (did you mean 'args.depth'?)"),
        ("arg.depht", " (did you mean 'args.depth'?)"),
        ("depth", " (did you mean 'args.depth'?)"),
        ("height", ""),
    ],
)
def test_an_argument_of_the_model_is_what_a_misspelt_key_was_meant_to_be(
    tmp_path: Path, key: str, hint: str
) -> None:
    model = "model: hpcbal.models:resnet"
    (problem,) = problems_of(tmp_path, f"  - name: r\n    {model}\n    grid: {{{key}: [8]}}\n")
    assert f"grid.{key}: unknown key{hint}, allowed: args.NAME" in problem
    found = problems_of(
        tmp_path, f"  - name: r{{width}}\n    {model}\n    {key}: 8\n    grid: {{args.width: [8]}}\n"
    )
    assert f"sweeps.0.{key}: unknown key{hint}, allowed: " in found[0]


def test_an_error_in_a_sweep_is_reported_once_for_all_its_dnns(tmp_path: Path) -> None:
    sweep = "  - name: r{a}\n    model: nothing\n    grid: {args.a: [1, 2, 3, 4]}\n"
    assert len(problems_of(tmp_path, sweep)) == 1


def test_the_body_of_a_broken_sweep_is_still_checked(tmp_path: Path) -> None:
    found = problems_of(tmp_path, "  - name: r{b}\n    model: nothing\n    grid: {args.a: [1]}\n")
    assert [problem.split(": ")[1] for problem in found] == ["sweeps.0.name", "sweeps.0.model"]


def test_a_sweep_that_explodes_is_refused(tmp_path: Path) -> None:
    values = list(range(400))
    found = problems_of(
        tmp_path, f"  - name: r\n    model: m:f\n    grid: {{args.a: {values}, args.b: {values}}}\n"
    )
    assert found == ["run.yaml:6: sweeps.0: makes 160000 DNNs, allowed: at most 100000"]


def test_a_sweep_must_be_a_mapping(tmp_path: Path) -> None:
    assert "allowed: a mapping with name, grid, zip or search" in problems_of(tmp_path, "  - 3\n")[0]


def test_a_dnn_of_a_sweep_can_be_changed_without_changing_the_others(tmp_path: Path) -> None:
    path = tmp_path / "run.yaml"
    optimizers = "[{name: adam, learning_rate: 0.2}, {name: sgd, learning_rate: 0.3}]"
    sweeps = (
        "sweeps:\n"
        "  - {name: 's{batch_size}', model: 'm:f', args: {width: 1}, grid: {batch_size: [1, 2]}}\n"
        "  - {name: 't{batch_size}-{x}', model: 'm:f', grid: {batch_size: [3, 4]},\n"
        f"     zip: {{args.x: [0, 1], optimizer: {optimizers}}}}}\n"
    )
    path.write_text(HEAD + sweeps, encoding="utf-8")
    plain = load_config(path)
    changed = load_config(
        path,
        ["dnns.s1.optimizer.momentum=0", "dnns.s2.args.width=7", "dnns.t3-0.optimizer.learning_rate=0.5"],
    )
    before, after = ({dnn.name: dnn for dnn in config.dnns} for config in (plain, changed))
    assert [name for name in before if before[name] != after[name]] == ["s1", "s2", "t3-0"]
    assert after["s1"].optimizer.momentum == 0.0
    assert (after["s1"].args, after["s2"].args) == ({"width": 1}, {"width": 7})
    assert after["t3-0"].optimizer.learning_rate == 0.5
