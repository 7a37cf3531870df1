"""The configuration of a parameter-server job."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from hpcbal.config import (
    EnsembleConfig,
    ParamServerConfig,
    RunConfig,
    load_config,
    load_ensemble,
    resolved_yaml,
)
from hpcbal.config.schema.fields import all_keys, keys_of
from hpcbal.errors import ConfigError
from hpcbal.kinds import KINDS

JOB = """\
kind: paramserver
app: own_app:Own
data: {dataset: "own_app:samples"}
mini_batch: 10
"""
OWN = """\
class Own:
    def __init__(self, source, rank=3):
        pass
def samples(count=5):
    return None
"""


def load(folder: Path, text: str = JOB, *overrides: str, **options: Any) -> ParamServerConfig:
    (folder / "own_app.py").write_text(OWN, encoding="utf-8")
    path = folder / "job.yaml"
    path.write_text(text, encoding="utf-8")
    config = load_config(path, overrides, **options)
    assert isinstance(config, ParamServerConfig)
    return config


def problems_of(folder: Path, text: str, *overrides: str, **options: Any) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        load(folder, text, *overrides, **options)
    return [problem.removeprefix(f"{folder}/") for problem in caught.value.problems]


def test_a_short_file_is_a_whole_job_that_tunes_itself(tmp_path: Path) -> None:
    config = load(tmp_path)
    assert (config.name, config.output.dir) == ("job", "runs/job")
    assert (config.workers, config.servers, config.tune.enabled) == ("auto", "auto", True)
    assert (config.consistency, config.staleness) == ("sync", 0)
    assert config.machine_of(0) is None


def test_the_written_out_config_loads_to_an_equal_one(tmp_path: Path) -> None:
    machines = "machines: [{count: 2, bandwidth: 10MB/s}, {speed: 0.5, seconds_per_sample: 0.01}]"
    config = load(tmp_path, f"{JOB}consistency: {{stale: 2}}\n{machines}\nmemory_per_rank: 2GiB\n")
    text = resolved_yaml(config)
    assert load(tmp_path, text) == config
    keys = [line.partition(":")[0] for line in text.splitlines() if line[:1].isalpha()]
    assert keys[: len(keys_of(RunConfig))] == keys_of(RunConfig)


@pytest.mark.parametrize(
    ("consistency", "steps_ahead"), [("sync", 0), ("async", None), ("{stale: 1}", 1), ("{stale: 7}", 7)]
)
def test_consistency_says_how_far_a_worker_may_be_ahead(
    tmp_path: Path, consistency: str, steps_ahead: int | None
) -> None:
    assert load(tmp_path, f"{JOB}consistency: {consistency}\n").staleness == steps_ahead


def test_emulated_machines_are_dealt_out_in_order_and_repeat(tmp_path: Path) -> None:
    machines = "machines: [{count: 2, bandwidth: 10MB/s}, {count: 1, speed: 2, seconds_per_sample: 1.0}]\n"
    config = load(tmp_path, JOB + machines)
    bandwidths = [config.machine_of(i).bandwidth for i in range(5)]  # type: ignore[union-attr]
    assert bandwidths == [10**7, 10**7, None, 10**7, 10**7]


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        ("", "shared"),
        ("machines: [{seconds_per_sample: 0.1}]", "shared"),
        ("machines: [{seconds_per_sample: 0.1}, {bandwidth: 1MB/s}]", "in_turn"),
        ("links: in_turn", "in_turn"),
    ],
)
def test_links_are_shared_unless_they_are_emulated(tmp_path: Path, lines: str, expected: str) -> None:
    assert load(tmp_path, f"{JOB}{lines}\n").link_model == expected


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        (
            "consistency: eventual",
            "job.yaml:5: consistency: got 'eventual', allowed: sync, async, or {stale: k}",
        ),
        ("consistency: {stale: 0}", "job.yaml:5: consistency"),
        ("workers: none", "job.yaml:5: workers: got 'none', allowed: auto or a whole number, 1 or more"),
        ("servers: 0", "job.yaml:5: servers: got 0, allowed: auto or a whole number, 1 or more"),
        ("dnns: []", "job.yaml:5: dnns"),
        ("tune: {min_gain: 1.0}", "job.yaml:5: tune.min_gain: got 1.0, allowed: 0 <= min_gain < 1"),
        ("memory_per_rank: much", "job.yaml:5: memory_per_rank: got 'much', allowed: null, bytes"),
        ("machines: [{bandwidth: 10}, {speed: 2}]", "job.yaml:5: machines.1.speed: got 2.0 without"),
        (
            "workers: 2\nexecutors: {start: 2}",
            "job.yaml:6: executors.start: got 2, allowed: 3 or more, for workers: 2 and servers: auto",
        ),
        ("args: {3: 4}", "job.yaml:5: args.3: got the key 3, allowed: text; write '3' with the quotes"),
        ("links: fair", "job.yaml:5: links: got 'fair', allowed: auto, shared, in_turn"),
        (
            "machines: [{bandwidth: 10}]\nlinks: shared",
            "job.yaml:6: links: got shared with machines that have a bandwidth, allowed: auto, in_turn",
        ),
        ("stop: {mode: up}", "job.yaml:5: stop.mode: got 'up', allowed: auto, min, max"),
    ],
)
def test_a_wrong_value_is_named_with_what_is_allowed(tmp_path: Path, line: str, problem: str) -> None:
    found = problems_of(tmp_path, f"{JOB}{line}\n")
    assert any(each.startswith(problem) for each in found), found


def test_a_job_needs_an_app_data_and_a_mini_batch(tmp_path: Path) -> None:
    found = problems_of(tmp_path, "kind: paramserver\n")
    assert [any(key in each for each in found) for key in ("app", "data", "mini_batch")] == [True] * 3


@pytest.mark.parametrize(
    ("override", "problem"),
    [
        ("app=own_app:Missing", "defines no 'Missing'"),
        ("app=nowhere:Own", "no module 'nowhere'"),
        ("args={rnk: 2}", "own_app:Own has no argument 'rnk' (did you mean 'rank'?), allowed: rank"),
        ("data.args={cnt: 2}", "own_app:samples has no argument 'cnt'"),
        ("data={args: {count: 2}}", "hpcbal.data:digits has no argument 'count'"),
    ],
)
def test_the_app_and_its_data_are_checked_without_running_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, override: str, problem: str
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    (found,) = problems_of(tmp_path, JOB, override, check_imports=True)
    assert problem in found


def test_what_works_with_ensembles_only_says_so(tmp_path: Path) -> None:
    path = tmp_path / "job.yaml"
    path.write_text(JOB, encoding="utf-8")
    with pytest.raises(ConfigError) as caught:
        load_ensemble(path)
    assert caught.value.problems == (f"{path}: kind: got paramserver, allowed here: ensemble",)
    assert EnsembleConfig.model_fields["kind"].default == "ensemble"


REFERENCE = Path(__file__).parents[3] / "configs" / "reference_paramserver.yaml"


def test_the_reference_shows_every_key_with_its_default() -> None:
    text = REFERENCE.read_text(encoding="utf-8")
    for key in all_keys(ParamServerConfig):
        if not key.startswith(("machines.", "consistency.", "executors.schedule.")):
            assert re.search(rf"^ *{key.rpartition('.')[2]}:.*(#|$)", text, re.MULTILINE), key
    written = load_config(REFERENCE)
    assert isinstance(written, ParamServerConfig)
    required = {key: getattr(written, key) for key in ("app", "mini_batch")}
    default = ParamServerConfig(name="reference_paramserver", data=written.data, **required)
    assert written == default


def test_the_json_schema_names_every_key() -> None:
    schema = KINDS["paramserver"].file.json_schema()
    assert set(schema["properties"]) == set(keys_of(ParamServerConfig))
    assert set(schema["required"]) == {"kind", "app", "data", "mini_batch"}


def test_a_key_without_effect_is_named(tmp_path: Path) -> None:
    lines: list[str] = []
    load(tmp_path, f"{JOB}stop: {{min_delta: 0.1}}\n", warn=lines.append)
    assert [line.partition(": ")[2] for line in lines] == [
        "stop.min_delta: got 0.1, which has an effect only with patience"
    ]
