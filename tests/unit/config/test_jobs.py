"""The configuration of many parameter-server jobs on the same machines."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from hpcbal.config import JobsConfig, RunConfig, load_config, load_ensemble, resolved_yaml
from hpcbal.config.schema.document import JobDefaults
from hpcbal.config.schema.fields import all_keys, keys_of
from hpcbal.config.schema.jobs import SharedJobConfig
from hpcbal.config.source.yaml_source import read_yaml
from hpcbal.errors import ConfigError
from hpcbal.kinds import KINDS

ONE = '{app: "own_app:Own", data: {dataset: "own_app:samples"}, mini_batch: 10'
JOBS = f"""\
kind: jobs
jobs:
  - {{name: a, {ONE[1:]}}}
  - {{name: b, arrives_s: 30, seed: 7, {ONE[1:]}}}
  - {{name: c, arrives_s: "00:01:00", seconds_per_sample: 0.01, {ONE[1:]}}}
"""
OWN = """\
class Own:
    def __init__(self, source, rank=3):
        pass
def samples(count=5):
    return None
"""


def load(folder: Path, text: str = JOBS, *overrides: str, **options: Any) -> JobsConfig:
    (folder / "own_app.py").write_text(OWN, encoding="utf-8")
    path = folder / "many.yaml"
    path.write_text(text, encoding="utf-8")
    config = load_config(path, overrides, **options)
    assert isinstance(config, JobsConfig)
    return config


def problems_of(folder: Path, text: str, *overrides: str, **options: Any) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        load(folder, text, *overrides, **options)
    return [problem.removeprefix(f"{folder}/") for problem in caught.value.problems]


def test_a_job_has_the_keys_of_one_alone_and_says_when_it_comes(tmp_path: Path) -> None:
    config = load(tmp_path)
    assert (config.name, config.output.dir) == ("many", "runs/many")
    assert [job.name for job in config.jobs] == ["a", "b", "c"]
    assert [job.arrives_s for job in config.jobs] == [0.0, 30.0, 60.0]
    assert [config.seed_of(job) for job in config.jobs] == [0, 7, 0]
    assert [job.seconds_per_sample for job in config.jobs] == [None, None, 0.01]
    assert {job.staleness for job in config.jobs} == {0}
    assert config.jobs[0].stop.max_epochs == 10


def test_by_default_groups_are_formed_and_kept_by_predicted_gain(tmp_path: Path) -> None:
    schedule = load(tmp_path).schedule
    assert (schedule.paradigm, schedule.min_gain, schedule.groups) == ("harmony", 0.05, None)
    assert (schedule.warm_up, schedule.profile_iterations) == (1, 2)


def test_the_written_out_config_loads_to_an_equal_one(tmp_path: Path) -> None:
    groups = "schedule: {paradigm: naive, groups: [{jobs: [a, c], machines: 3}, {jobs: [b], machines: 1}]}\n"
    machines = "machines: [{count: 3, bandwidth: 10MB/s}, {count: 1}]\n"
    config = load(tmp_path, JOBS + groups + machines)
    text = resolved_yaml(config)
    assert load(tmp_path, text) == config
    keys = [line.partition(":")[0] for line in text.splitlines() if line[:1].isalpha()]
    assert keys[: len(keys_of(RunConfig))] == keys_of(RunConfig)
    assert keys_of(SharedJobConfig)[0] == "name"


def test_emulated_machines_repeat_from_the_first(tmp_path: Path) -> None:
    config = load(tmp_path, f"{JOBS}machines: [{{count: 2, bandwidth: 10MB/s}}, {{bandwidth: 5MB/s}}]\n")
    machines = [config.machine_of(i) for i in range(4)]
    assert [machine and machine.bandwidth for machine in machines] == [1e7, 1e7, 5e6, 1e7]
    assert load(tmp_path).machine_of(0) is None


@pytest.mark.parametrize(
    ("override", "problem"),
    [
        (
            "jobs.b.consistency=async",
            "got 'async', allowed: sync; a group of jobs computes and talks in turns",
        ),
        ("jobs.b.consistency={stale: 2}", "got {'stale': 2}, allowed: sync"),
        ("jobs.b.arrives_s=-1", "got -1, allowed: seconds, 0 or more, or 'HH:MM:SS'"),
        ("jobs.b.seconds_per_sample=0", "got 0, allowed: null or seconds above 0"),
        ("jobs.b.seed=-1", "got -1, allowed: null or a whole number from 0"),
        ("jobs.b.workers=2", "unknown key"),
        ("jobs=[]", "got [], allowed: a list of at least one job"),
        ("schedule.paradigm=harmonic", "(did you mean 'harmony'?)"),
        ("schedule.min_gain=1.0", "got 1.0, allowed: 0 <= min_gain < 1"),
        ("schedule.warm_up=-1", "got -1, allowed: a whole number, 0 or more"),
        ("schedule.profile_iterations=0", "got 0, allowed: a whole number, 1 or more"),
        ("schedule.groups=[]", "got [], allowed: null or a list of at least one group"),
        ("machines=[{seconds_per_sample: 1}]", "unknown key"),
    ],
)
def test_a_wrong_value_is_named_with_what_is_allowed(tmp_path: Path, override: str, problem: str) -> None:
    found = problems_of(tmp_path, JOBS, override)
    assert any(problem in each for each in found), found


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        (
            "schedule: {groups: [{jobs: [a], machines: 1}]}",
            "many.yaml:6: schedule.groups: got groups with paradigm harmony, which forms its own",
        ),
        (
            "schedule: {paradigm: naive, groups: [{jobs: [a, b], machines: 1}, {jobs: [c, a], machines: 1}]}",
            "many.yaml:6: schedule.groups.1.jobs.1: got 'a', which is in groups.0 already, allowed: each job",
        ),
        (
            "schedule: {paradigm: naive, groups: [{jobs: [a, d], machines: 1}]}",
            "many.yaml:6: schedule.groups.0.jobs.1: got 'd', which no job is, allowed: a, b, c",
        ),
        (
            "schedule: {paradigm: naive, groups: [{jobs: [], machines: 1}]}",
            "many.yaml:6: schedule.groups.0.jobs: got [], allowed: a list of at least one name",
        ),
        (
            "schedule: {paradigm: naive, groups: [{jobs: [a], machines: 0}]}",
            "many.yaml:6: schedule.groups.0.machines: got 0, allowed: a whole number, 1 or more",
        ),
        (
            "machines: [{}, {speed: 2}]",
            "many.yaml:6: machines.1.speed: got 2 without seconds_per_sample of the job 'a' and 1 more; give",
        ),
    ],
)
def test_groups_and_machines_must_fit_the_jobs(tmp_path: Path, line: str, problem: str) -> None:
    found = problems_of(tmp_path, f"{JOBS}{line}\n")
    assert any(each.startswith(problem) for each in found), found


def test_a_speed_is_allowed_where_every_job_has_the_time_of_a_sample(tmp_path: Path) -> None:
    times = [f"jobs.{name}.seconds_per_sample=0.001" for name in "ab"]
    machine = load(tmp_path, f"{JOBS}machines: [{{speed: 2}}]\n", *times).machine_of(0)
    assert machine is not None
    assert machine.speed == 2.0


def test_names_of_jobs_are_directories_and_differ(tmp_path: Path) -> None:
    (twice,) = problems_of(tmp_path, JOBS, "jobs.2.name=A")
    assert "got 'A' beside 'a' (first at" in twice
    assert "not only by upper and lower case" in twice
    (no_name,) = problems_of(tmp_path, JOBS, "jobs.2.name=a/b")
    assert "got 'a/b', allowed: a directory name" in no_name


def test_arguments_have_names(tmp_path: Path) -> None:
    (found,) = problems_of(tmp_path, JOBS, "jobs.a.data.args={3: x}")
    assert "got the key 3, allowed: text; write '3' with the quotes" in found


@pytest.mark.parametrize(
    ("override", "problem"),
    [
        ("jobs.b.app=own_app:Missing", "defines no 'Missing'"),
        ("jobs.b.app=nowhere:Own", "no module 'nowhere'"),
        ("jobs.b.args={rnk: 2}", "own_app:Own has no argument 'rnk' (did you mean 'rank'?), allowed: rank"),
        ("jobs.b.data.args={cnt: 2}", "own_app:samples has no argument 'cnt'"),
    ],
)
def test_apps_and_data_are_checked_without_running_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, override: str, problem: str
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    (found,) = problems_of(tmp_path, JOBS, override, check_imports=True)
    assert problem in found


def test_a_wrong_app_is_reported_at_its_line_and_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    text = JOBS.replace("name: c, ", "name: c, args: {rnk: 1}, ")
    (found,) = problems_of(tmp_path, text, check_imports=True)
    assert found.startswith("many.yaml:5: jobs.2.args.rnk: ")


def test_keys_without_effect_are_named(tmp_path: Path) -> None:
    lines: list[str] = []
    load(tmp_path, JOBS, "jobs.a.stop={min_delta: 0.1}", warn=lines.append)
    assert [line.partition(": got ")[2] for line in lines] == [
        "0.01, which has an effect only with emulated machines",
        "0.1, which has an effect only with patience",
    ]


def test_what_works_with_ensembles_only_says_so(tmp_path: Path) -> None:
    load(tmp_path)
    with pytest.raises(ConfigError) as caught:
        load_ensemble(tmp_path / "many.yaml")
    assert caught.value.problems == (f"{tmp_path / 'many.yaml'}: kind: got jobs, allowed here: ensemble",)


MANY = """\
kind: jobs
seed: 5
defaults: {mini_batch: 10, stop: {max_epochs: 3, patience: 2}, seconds_per_sample: 0.1}
jobs:
  - {name: a, app: "own_app:Own", data: {dataset: "own_app:samples"}, stop: {max_epochs: 7}}
sweeps:
  - name: own-{rank}-{count}
    app: own_app:Own
    data: {dataset: "own_app:samples"}
    seconds_per_sample: 0.2
    grid: {args.rank: [2, 4]}
    zip: {data.args.count: [10, 20], arrives_s: [0, 60]}
"""


def test_jobs_are_listed_and_swept_and_take_what_they_omit_from_defaults(tmp_path: Path) -> None:
    jobs = load(tmp_path, MANY).jobs
    assert [job.name for job in jobs] == ["a", "own-2-10", "own-2-20", "own-4-10", "own-4-20"]
    assert [job.args.get("rank") for job in jobs] == [None, 2, 2, 4, 4]
    assert [job.data.args.get("count") for job in jobs] == [None, 10, 20, 10, 20]
    assert [job.arrives_s for job in jobs] == [0.0, 0.0, 60.0, 0.0, 60.0]
    assert [job.stop.max_epochs for job in jobs] == [7, 3, 3, 3, 3]
    assert {job.stop.patience for job in jobs} == {2}
    assert [job.seconds_per_sample for job in jobs] == [0.1, 0.2, 0.2, 0.2, 0.2]


def test_an_override_changes_one_job_of_a_sweep_by_name(tmp_path: Path) -> None:
    overrides = ["jobs.own-2-20.mini_batch=99", "jobs.own-4-10.data.args.count=1", "defaults.mini_batch=8"]
    jobs = load(tmp_path, MANY, *overrides).jobs
    assert [job.mini_batch for job in jobs] == [8, 8, 99, 8, 8]
    assert [job.data.args.get("count") for job in jobs] == [None, 10, 20, 1, 20]
    (unknown,) = problems_of(tmp_path, MANY, "jobs.own-2-30.mini_batch=9")
    assert (
        "jobs has no 'own-2-30', allowed: a name or an index from 0 to 4 (did you mean 'own-2-20'?)"
        in unknown
    )


def test_a_search_draws_values_by_the_seed_of_the_run(tmp_path: Path) -> None:
    text = MANY.replace(
        "    zip: {data.args.count: [10, 20], arrives_s: [0, 60]}\n",
        "    search: {samples: 4, space: {arrives_s: {uniform: [0, 100]}}}\n",
    ).replace("own-{rank}-{count}", "own-{rank}-{sample}")
    arrivals = [job.arrives_s for job in load(tmp_path, text).jobs[1:]]
    assert len(set(arrivals)) == 4
    assert all(0 <= each <= 100 for each in arrivals)
    assert arrivals == [job.arrives_s for job in load(tmp_path, text).jobs[1:]]
    assert arrivals != [job.arrives_s for job in load(tmp_path, text, "seed=6").jobs[1:]]


@pytest.mark.parametrize(
    ("before", "after", "problem"),
    [
        (
            "app: own_app:Own\n",
            "app: own_app:Own\n    args: {rnk: 1}\n",
            "has no argument 'rnk' (did you mean",
        ),
        ("args.rank:", "rank:", "unknown key (did you mean 'args.rank'?), allowed: args.NAME, arrives_s"),
        ("args.rank:", "batch_size:", "unknown key (did you mean 'mini_batch'?)"),
        ("args.rank:", "max_epochs:", "unknown key (did you mean 'stop.max_epochs'?)"),
        ("args.rank:", "name:", "allowed: keys of a job other than name, e.g. args.rank"),
        ("own-{rank}", "own-{rnk}", "got {rnk} in the name, allowed: {args.rank}"),
        ("own-{rank}", "own", "for more than one job"),
        ("[2, 4]", "[]", "got [], allowed: a list of at least one value"),
        ("mini_batch: 10", "mini_batch: 0", "defaults.mini_batch: got 0, allowed: a whole number, 1 or more"),
        ("mini_batch: 10", "batch: 10", "unknown key"),
        ("seconds_per_sample: 0.2", "second_per_sample: 0.2", "(did you mean 'seconds_per_sample'?)"),
        (
            "{max_epochs: 7}",
            "{max_epochs: 7}, max_epochs: 3",
            "unknown key (did you mean 'stop.max_epochs'?)",
        ),
    ],
)
def test_what_is_wrong_in_a_sweep_or_in_defaults_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, before: str, after: str, problem: str
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    assert before in MANY
    found = problems_of(tmp_path, MANY.replace(before, after), check_imports=True)
    assert any(problem in each for each in found), found


def test_the_json_schema_names_every_key() -> None:
    schema = KINDS["jobs"].file.json_schema()
    assert set(schema["properties"]) == {*keys_of(JobsConfig), "defaults", "sweeps"}
    assert schema["required"] == ["kind"]
    assert schema["anyOf"] == [{"required": ["jobs"]}, {"required": ["sweeps"]}]
    job = schema["$defs"]["SharedJobConfig"]
    assert set(job["properties"]) == set(keys_of(SharedJobConfig))
    assert job["required"] == ["name"]
    assert set(schema["$defs"]["SweepConfig"]["properties"]) == {*job["properties"], "grid", "zip", "search"}
    defaults = set(schema["properties"]["defaults"]["properties"])
    assert defaults == set(JobDefaults.model_fields)
    assert defaults < set(job["properties"])


CONFIGS = Path(__file__).parents[3] / "configs"
REFERENCE = CONFIGS / "reference_jobs.yaml"


def test_the_reference_shows_every_key_with_its_default() -> None:
    text = REFERENCE.read_text(encoding="utf-8")
    for key in all_keys(JobsConfig):
        if not key.startswith(("machines.", "schedule.groups.")):
            assert re.search(rf"^ *(- )?{key.rpartition('.')[2]}:.*(#|$)", text, re.MULTILINE), key
    written = load_config(REFERENCE, check_imports=True)
    assert isinstance(written, JobsConfig)
    (digits, *_) = written.jobs
    required = {"name": digits.name, "app": digits.app, "mini_batch": digits.mini_batch}
    assert digits == SharedJobConfig(data=digits.data, **required)
    assert written == JobsConfig(name="reference_jobs", jobs=written.jobs)


def test_the_file_in_the_guide_is_valid(tmp_path: Path) -> None:
    guide = (CONFIGS.parent / "docs" / "parameter-servers.md").read_text(encoding="utf-8")
    (shown,) = re.findall(r"```yaml\n(kind: jobs\n.*?)```", guide, re.DOTALL)
    warnings: list[str] = []
    config = load(tmp_path, shown, check_imports=True, warn=warnings.append)
    assert ([job.name for job in config.jobs], warnings) == (["topics", "digits"], [])


def test_the_defaults_of_the_reference_are_all_that_there_may_be() -> None:
    node = read_yaml(REFERENCE).get("defaults")
    assert node is not None
    assert set(node.value) == set(JobDefaults.model_fields)


def test_the_example_has_eight_jobs_of_four_apps_on_four_machines() -> None:
    config = load_config(CONFIGS / "jobs.yaml", check_imports=True)
    assert isinstance(config, JobsConfig)
    assert len(config.jobs) == 8
    assert len({job.app for job in config.jobs}) == 4
    assert sum(machine.count for machine in config.machines) == 4
    assert all(job.seconds_per_sample for job in config.jobs)
