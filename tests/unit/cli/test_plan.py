"""`hpcbal plan`: where the rates come from, and what the plan shows."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from ledger_lines import a, plan_of

from hpcbal.cli import main
from hpcbal.control.paradigms import PARADIGM_NAMES
from hpcbal.events.ensemble import EpochDone, StartRound
from hpcbal.policies.rates import RateTable, profile_to_dict
from hpcbal.telemetry.ledger.file import Ledger

DNNS = """\
defaults: {optimizer: {name: sgd, learning_rate: 0.1}, batch_size: 4, stop: {max_epochs: 2}}
dnns:
  - {name: fast, model: "m:f"}
  - {name: half, model: "m:f"}
  - {name: slow, model: "m:f"}
slots: {per_node: 4}
schedule: {delta: 10}
"""
RATES = {"fast": {1: 100.0, 2: 190.0}, "half": {1: 50.0, 2: 95.0}, "slow": {1: 5.0}}
BACKEND = {
    "name": "emulated",
    "rates": {name: {str(m): r for m, r in by.items()} for name, by in RATES.items()},
}
EMULATED = f"backend: {json.dumps(BACKEND)}\n"
Capture = pytest.CaptureFixture[str]


@pytest.fixture(autouse=True)
def in_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def write_config(text: str = DNNS) -> str:
    Path("run.yaml").write_text(text, encoding="utf-8")
    return "run.yaml"


def write_profile(path: Path, rates: dict[str, dict[int, float]] = RATES, **extra: Any) -> Path:
    table = RateTable(rates, 4)
    profile = profile_to_dict(table, {name: f"key-{name}" for name in rates}) | extra
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(profile), encoding="utf-8")
    return path


def plan(capsys: Capture, *arguments: str) -> Any:
    """The plan as JSON."""
    assert main(["plan", *arguments, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def refused(capsys: Capture, *arguments: str) -> str:
    """The message when there is no plan."""
    assert main(["plan", *arguments]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    return captured.err


def test_flotillas_counts_rates_and_places(capsys: Capture) -> None:
    result = plan(capsys, write_config(DNNS + EMULATED))
    first, second = result["flotillas"]
    assert [(d["name"], d["num_slots"]) for d in first["dnns"]] == [("fast", 1), ("half", 3)]
    fast, half = first["dnns"]
    assert (fast["rate_before_samples_per_s"], half["rate_before_samples_per_s"]) == (100.0, 95.0)
    assert half["rate_samples_per_s"] > 95.0
    assert sorted(fast["slots"] + half["slots"]) == [0, 1, 2, 3]
    assert half["slots_by_node"] == {"node0": half["slots"]}
    assert [(d["name"], d["num_slots"]) for d in second["dnns"]] == [("slow", 4)]
    assert second["reference_rate_samples_per_s"] == 5.0
    assert result["rates_from"] == "backend.rates"


def test_the_table_and_the_json_agree(capsys: Capture) -> None:
    assert main(["plan", write_config(DNNS + EMULATED), "--nodes", "2", "--slots-per-node", "2"]) == 0
    captured = capsys.readouterr()
    lines = captured.out.splitlines()
    assert lines[0] == "run: 3 DNNs in 2 flotillas on 2 nodes with 2 slots each"
    rows = [line.split() for line in lines if line.strip()]
    assert [row[:3] for row in rows if "fast" in row] == [["1", "fast", "1"]]
    assert next(row for row in rows if "slow" in row)[-3:] == ["node0:0-1", "node1:0-1", "3"]
    assert "ranks: 8 = 1 scheduler + 3 preprocessors + 4 trainers (4 per node)" in lines
    command = "hpcbal run run.yaml --set slots.per_node=2"
    assert f"start: mpirun -n 8 --map-by ppr:4:node --bind-to none {command}" in lines
    options = "--mpi=pmix --kill-on-bad-exit=0 --wait=120 --export=ALL"
    assert f"   or: srun --nodes=2 --ntasks-per-node=4 {options} {command}" in lines
    assert "preprocessors per node: 1 on the first, 2 on the others" in lines
    assert lines[lines.index("Slots of the first flotilla:") + 1 :][:2] == [
        "  node0  0:fast 1:half",
        "  node1  0-1:half",
    ]
    assert captured.err == "hpcbal: rates from backend.rates\n"


def test_the_time_of_augment_is_named_as_not_measured(capsys: Capture) -> None:
    words = ["--nodes", "2", "--slots-per-node", "2", "--set", "defaults.augment=[random_flip]"]
    assert main(["plan", write_config(DNNS + EMULATED), *words]) == 0
    said = capsys.readouterr().err.splitlines()
    assert [
        line
        for line in said
        if "augment of 3 DNNs" in line and "not measured, because rates are given" in line
    ]


def test_the_launch_line_carries_the_overrides(capsys: Capture) -> None:
    result = plan(capsys, write_config(DNNS + EMULATED), "--set", "name=my-runs")
    assert result["launch"][0] == "mpirun -n 6 --bind-to none hpcbal run run.yaml --set name=my-runs"
    result = plan(capsys, "run.yaml", "--set", "schedule.profiling={max_slots: 3}")
    assert "--set 'schedule.profiling={max_slots: 3}'" in result["launch"][1]


@pytest.mark.parametrize(
    ("options", "is_noted"),
    [
        ([], True),
        (["--slots", "4"], False),  # fewer DNNs than slots
        (["--set", "slots.device=gpu"], False),
        (["--set", "balance.policy=fitted"], False),
        (["--set", "schedule.max_slots_per_dnn=null"], False),
    ],
)
def test_a_plan_says_where_the_run_may_give_fewer_slots(
    capsys: Capture, tmp_path: Path, options: list[str], is_noted: bool
) -> None:
    write_profile(tmp_path / "p.json")
    assert main(["plan", write_config(), "--profile", "p.json", "--slots", "2", *options]) == 0
    assert ("schedule.max_slots_per_dnn: auto" in capsys.readouterr().err) is is_noted


@pytest.mark.parametrize(
    ("device", "headings"),
    [
        ("auto", ["     start: mpirun", "        or: srun", "or on GPUs: srun"]),
        ("gpu", ["start: mpirun", "   or: srun"]),
        ("cpu", ["start: mpirun", "   or: srun"]),
    ],
)
def test_the_line_for_gpus_is_shown_where_slots_may_be_gpus(
    capsys: Capture, tmp_path: Path, device: str, headings: list[str]
) -> None:
    write_profile(tmp_path / "p.json")
    arguments = [
        write_config(),
        "--profile",
        "p.json",
        "--cpus-per-task",
        "7",
        "--set",
        f"slots.device={device}",
    ]
    assert main(["plan", *arguments]) == 0
    lines = capsys.readouterr().out.splitlines()
    shown = [line for line in lines if "mpirun -n" in line or "srun --" in line]
    assert [line.partition(" -")[0] for line in shown] == headings
    with_gpus = ["--gpus-per-node=4" in line for line in shown if "srun" in line]
    assert with_gpus == {"auto": [False, True], "gpu": [True], "cpu": [False]}[device]
    assert main(["plan", *arguments, "--set", "slots.per_gpu=3"]) == 0
    assert ("--gpus-per-node=2" in capsys.readouterr().out) == (device != "cpu")
    assert all("--ntasks-per-node=6 --cpus-per-task=7" in line for line in shown if "srun" in line)


def test_ranks_are_the_same_on_every_node(capsys: Capture) -> None:
    text = DNNS.replace("per_node: 4", "per_node: 4, preprocessors_per_node: 2")
    result = plan(capsys, write_config(text + EMULATED), "--nodes", "3")
    assert result["ranks"] == {
        "total": 21,
        "per_node": 7,
        "schedulers": 1,
        "preprocessors": 8,
        "trainers": 12,
    }


def test_rates_of_a_profile_win_over_the_configuration(capsys: Capture, tmp_path: Path) -> None:
    write_profile(tmp_path / "p.json", {"fast": {1: 7.0}, "half": {1: 7.0}, "slow": {1: 7.0}})
    result = plan(capsys, write_config(DNNS + EMULATED), "--profile", "p.json")
    assert result["rates_from"] == "p.json"
    assert len(result["flotillas"]) == 1


def test_rates_come_from_the_key_or_the_output_directory(capsys: Capture, tmp_path: Path) -> None:
    write_profile(tmp_path / "runs/run/profile.json")
    assert plan(capsys, write_config())["rates_from"] == "runs/run/profile.json"
    assert plan(capsys, "run.yaml", "--profile", "runs/run")["rates_from"] == "runs/run/profile.json"
    write_profile(tmp_path / "kept.json")
    result = plan(capsys, "run.yaml", "--set", "schedule.profiling.rates=kept.json")
    assert result["rates_from"] == "kept.json"


def test_preprocessors_are_as_many_as_needed_once_measured(capsys: Capture, tmp_path: Path) -> None:
    write_profile(tmp_path / "p.json", preprocessing={"samples_per_s": 60.0})
    text = DNNS.replace("per_node: 4", "per_node: 4, preprocessors_per_node: 5")
    result = plan(capsys, write_config(text), "--profile", "p.json")
    assert result["preprocessing_samples_per_s"] == 60.0
    fastest = max(d["rate_samples_per_s"] for d in result["flotillas"][0]["dnns"])
    assert result["flotillas"][0]["num_preprocessors"] == -(-fastest // 60.0)
    assert result["flotillas"][1]["num_preprocessors"] == 1


def test_without_rates_the_error_says_how_to_get_them(capsys: Capture) -> None:
    text = refused(capsys, write_config())
    assert text.startswith(
        "hpcbal: no training rates: runs/run/profile.json does not exist; measure them with 'hpcbal"
    )
    assert "hpcbal profile run.yaml" in text
    assert "--profile FILE" in text


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "p.json: profile cannot be read: No such file or directory; measure them with"),
        ("{", "p.json: not a profile, because it is not JSON"),
        ("[]", "p.json: this is not a profile"),
        ('{"format": 9, "entries": {}}', "p.json: profile has format 9"),
        ('{"format": 1, "entries": {}}', "p.json: has no rate on 1 slot for fast, half, slow; measure"),
        (
            '{"format": 1, "entries": {"k": {"dnn": "fast"}}}',
            "p.json: profile entry k: needs dnn, slots_per_node",
        ),
        (
            '{"format": 1, "entries": {}, "preprocessing": {"samples_per_s": 0}}',
            "p.json: preprocessing.samples_per_s",
        ),
    ],
)
def test_an_unusable_profile_is_refused_with_the_reason(
    capsys: Capture, content: str | None, message: str
) -> None:
    if content is not None:
        Path("p.json").write_text(content, encoding="utf-8")
    assert refused(capsys, write_config(), "--profile", "p.json").startswith(f"hpcbal: {message}")


def test_unknown_slots_must_be_given(capsys: Capture) -> None:
    config = write_config((DNNS + EMULATED).replace("per_node: 4", "per_node: auto"))
    assert "give --slots-per-node N for a plan" in refused(capsys, config)
    assert plan(capsys, config, "--slots-per-node", "3")["ranks"]["trainers"] == 3


def test_numbers_of_slots_are_converted_to_nodes(capsys: Capture) -> None:
    config = write_config(DNNS + EMULATED)
    assert [node["num_slots"] for node in plan(capsys, config, "--slots", "8")["nodes"]] == [4, 4]
    part = plan(capsys, config, "--slots", "3")
    assert [node["num_slots"] for node in part["nodes"]] == [3]
    assert part["launch"][0] == "mpirun -n 5 --bind-to none hpcbal run run.yaml --set slots.per_node=3"
    assert "got 6, allowed with 4 slots per node: up to 4, or whole nodes such as 4 or 8" in refused(
        capsys, config, "--slots", "6"
    )


def test_the_map_names_the_dnn_of_each_slot(capsys: Capture) -> None:
    first = plan(capsys, write_config(DNNS + EMULATED))["flotillas"][0]
    assert first["slot_map"] == {"node0": ["fast", "half", "half", "half"]}
    two_slots = ("--set", "schedule.max_slots_per_dnn=2", "--set", "schedule.paradigm=global")
    second = plan(capsys, "run.yaml", *two_slots)["flotillas"][-1]
    assert second["slot_map"]["node0"].count(None) == 2


@pytest.mark.parametrize(
    ("paradigm", "sizes"),
    [("global", [2, 1]), ("local", [2]), ("homogeneous", [2, 1]), ("elastic", [1]), ("independent", [2])],
)
def test_the_certain_part_of_each_schedule_is_shown(capsys: Capture, paradigm: str, sizes: list[int]) -> None:
    slots = "4" if paradigm in ("global", "local") else "2"
    config = write_config(DNNS + EMULATED)
    result = plan(capsys, config, "--slots", slots, "--set", f"schedule.paradigm={paradigm}")
    assert [len(flotilla["dnns"]) for flotilla in result["flotillas"]] == sizes
    assert result["paradigm"] == paradigm
    assert result["forecast"]["wall_time_s"] >= result["forecast"]["lower_bound_s"]


def test_auto_shows_its_candidates_side_by_side(capsys: Capture) -> None:
    config = write_config((DNNS + EMULATED).replace("schedule: {delta: 10}\n", ""))
    result = plan(capsys, config, "--samples", "1000")
    candidates = result["candidates"]
    assert {each["paradigm"] for each in candidates} == set(PARADIGM_NAMES)
    assert [each["chosen"] for each in candidates] == [True] + [False] * (len(candidates) - 1)
    assert candidates[0]["wall_time_s"] == min(each["wall_time_s"] for each in candidates)
    assert (result["paradigm"], result["delta"]) == (candidates[0]["paradigm"], candidates[0]["delta"])
    assert main(["plan", config]) == 0  # without the size of the dataset
    shown = capsys.readouterr().out
    assert "Schedules that 'auto' compares" in shown
    assert plan(capsys, config, "--set", "schedule.paradigm=independent")["candidates"] is None


def test_a_key_that_is_given_stays_as_given(capsys: Capture) -> None:
    config = write_config(DNNS + EMULATED)
    deltas = {each["delta"] for each in plan(capsys, config)["candidates"]}
    assert deltas == {"10 samples/s", None}
    both = plan(capsys, config, "--set", "schedule.paradigm=global")
    assert (both["candidates"], both["delta"], both["alpha"]) == (None, "10 samples/s", 0.8)


def test_the_wall_time_comes_from_the_simulation(capsys: Capture) -> None:
    config = write_config(DNNS + EMULATED)
    prediction = plan(capsys, config, "--slots", "1", "--samples", "1000")["forecast"]
    assert prediction["wall_time_s"] == pytest.approx(2 * (800 + 200 / 3) * (1 / 100 + 1 / 50 + 1 / 5))
    assert (prediction["fits"], prediction["usable_s"], prediction["num_starts"]) == (True, None, 1)


def test_costs_of_starting_and_saving_come_from_an_earlier_run(capsys: Capture, tmp_path: Path) -> None:
    config = write_config(DNNS + EMULATED)
    arguments = (config, "--slots", "1", "--samples", "1000")
    free = plan(capsys, *arguments)["forecast"]
    assert free["costs"] is None
    assert main(["plan", *arguments]) == 0
    assert "without the time to build, load and save networks" in capsys.readouterr().out
    (tmp_path / "runs/run").mkdir(parents=True)
    with Ledger(tmp_path / "runs/run/ledger.jsonl") as ledger:
        ledger.append(StartRound(plan_of({"fast": (0,)})))
        ledger.append(a(EpochDone, dnn_id="fast"))
    prediction = plan(capsys, *arguments)["forecast"]
    assert prediction["costs"]["build_s"] == 0.0
    assert prediction["wall_time_s"] == pytest.approx(free["wall_time_s"] + 3 * prediction["costs"]["form_s"])


def test_without_the_dataset_size_the_wall_time_is_unknown(capsys: Capture) -> None:
    config = write_config(DNNS + EMULATED + "data: {dataset: 'mine:data'}\n")
    assert plan(capsys, config)["forecast"] is None
    assert main(["plan", config]) == 0
    assert (
        "wall time: unknown, because the size of the dataset is not known: give --samples N"
        in capsys.readouterr().out
    )


def test_an_ensemble_of_very_many_epochs_is_planned_without_its_wall_time(capsys: Capture) -> None:
    arguments = ["plan", write_config(DNNS + EMULATED), "--samples", "100"]
    assert main([*arguments, "--set", "dnns.fast.stop.max_epochs=1000000000"]) == 0
    reason = "fast has a stop.max_epochs of 1000000000, and at most 2000 epochs of a DNN are simulated"
    assert f"wall time: unknown, because {reason}" in capsys.readouterr().out
    dnns = [{"name": f"d{i}", "model": "m:f", "stop": {"max_epochs": 2000}} for i in range(51)]
    rates = {dnn["name"]: {"1": 9.0} for dnn in dnns}
    sets = [f"dnns={json.dumps(dnns)}", f"backend.rates={json.dumps(rates)}"]
    assert main([*arguments, *(part for text in sets for part in ("--set", text))]) == 0
    reason = "stop.max_epochs of all DNNs is 102000 in sum, and at most 100000 are simulated"
    assert f"wall time: unknown, because {reason}" in capsys.readouterr().out


def test_the_known_size_of_the_digits_is_right(capsys: Capture) -> None:
    config = write_config(DNNS + EMULATED)
    known = plan(capsys, config, "--slots", "1")["forecast"]
    assert plan(capsys, config, "--slots", "1", "--open-data")["forecast"] == known


def test_a_walltime_that_is_too_short_is_reported_with_one_that_is_enough(capsys: Capture) -> None:
    config = write_config(DNNS.replace("batch_size: 4", "batch_size: 512") + EMULATED + "walltime: 600\n")
    arguments = (config, "--slots", "4", "--samples", "10000")
    prediction = plan(capsys, *arguments)["forecast"]
    assert (prediction["fits"], prediction["num_starts"]) == (False, 3)
    more = plan(capsys, config, "--samples", "10000", "--nodes", str(prediction["num_nodes_that_fit"]))[
        "forecast"
    ]
    assert more["fits"]
    assert main(["plan", *arguments]) == 0
    text = capsys.readouterr().out
    assert "DOES NOT FIT into the walltime (0:09:00 before the clean stop)" in text
    assert (
        f"{prediction['num_nodes_that_fit']} such nodes would be enough, or 3 starts of the same command"
        in text
    )


def test_the_plan_says_if_no_number_of_nodes_is_enough(capsys: Capture) -> None:
    config = write_config(DNNS + EMULATED + "walltime: 40\n")
    arguments = (config, "--samples", "10000", "--set", "schedule.max_slots_per_dnn=1")
    assert plan(capsys, *arguments)["forecast"]["num_nodes_that_fit"] is None
    assert main(["plan", *arguments]) == 0
    assert "no number of nodes up to 256 is enough" in capsys.readouterr().out


def test_the_known_memory_is_shown(capsys: Capture, tmp_path: Path) -> None:
    config = write_config(DNNS + EMULATED + "dataplane: {ring_bytes: 1MiB}\n")
    memory = plan(capsys, config)["memory_per_node"]
    assert memory["ring_bytes"] == memory["known_bytes"] == 2**20
    assert (memory["networks_bytes"], memory["unknown"]) == (None, ["fast", "half", "slow"])
    for given, fits in (("1GiB", None), ("1MB", False)):  # too much is too much, whatever comes on top
        assert plan(capsys, config, "--memory", given)["memory_per_node"]["fits"] is fits
    for name in ("fast", "half", "slow"):
        directory = tmp_path / "runs/run/dnns" / name
        directory.mkdir(parents=True)
        (directory / "checkpoint.h5").write_bytes(b"x" * 1000)
    memory = plan(capsys, config, "--memory", "1GiB")["memory_per_node"]
    assert (memory["networks_bytes"], memory["snapshots_bytes"], memory["fits"]) == (4000, 2000, True)
    assert main(["plan", config, "--memory", "1MB"]) == 0
    text = capsys.readouterr().out
    assert (
        "DOES NOT FIT into 976.6 KiB: 53.3 KiB too much; set dataplane.ring_bytes to 994000 or less" in text
    )


def test_no_dnn_gets_more_than_its_limit(capsys: Capture) -> None:
    result = plan(capsys, write_config(DNNS + EMULATED), "--set", "schedule.max_slots_per_dnn=2")
    assert max(d["num_slots"] for f in result["flotillas"] for d in f["dnns"]) == 2


def test_weights_for_more_slots_than_planned_are_refused(capsys: Capture) -> None:
    config = write_config(DNNS + EMULATED + "balance: {policy: fixed, shares: [4, 3, 2, 1, 1]}\n")
    assert main(["plan", config]) == 2
    assert capsys.readouterr().err.startswith("balance.shares: got 5 weights, allowed: at most 4, one for")
    assert main(["plan", config, "--nodes", "2"]) == 0


def test_a_limit_below_an_even_share_causes_a_warning(capsys: Capture) -> None:
    """`half` gets three slots, `slow` four: only on one slot is the share of `fast` above the limit."""
    config = write_config(DNNS + EMULATED + "balance: {policy: fitted, max_samples_per_slot: 2}\n")
    shown = (
        "less than an even share, which is always allowed: fast (4 of 4 samples on 1 slot); shares stay even"
    )
    assert main(["plan", config]) == 0
    assert f"warning: balance.max_samples_per_slot: got 2, {shown}\n" in capsys.readouterr().err
    assert main(["plan", config, "--set", "balance.max_samples_per_slot=4"]) == 0
    assert "warning" not in capsys.readouterr().err


def test_partitioned_data_on_more_slots_than_a_step_has_samples_is_refused(capsys: Capture) -> None:
    slow = "defaults: {optimizer: {name: sgd, learning_rate: 0.1}, batch_size: 4, stop: {max_epochs: 2}}\n"
    slow += 'dnns: [{name: slow, model: "m:f"}]\nslots: {per_node: 4}\ndata: {access: partitioned}\n'
    config = write_config(slow + "backend: {name: emulated, rates: {slow: {1: 5.0}}}\n")
    assert main(["plan", config]) == 0
    capsys.readouterr()
    assert "dnns.slow.batch_size: got 4, allowed: at least 8" in refused(capsys, config, "--nodes", "2")
    assert main(["plan", config, "--nodes", "2", "--set", "schedule.max_slots_per_dnn=4"]) == 0
    capsys.readouterr()
    few = ("--samples", "4")
    assert "data.dataset: got 3 training samples, allowed: at least 4" in refused(capsys, config, *few)
    assert main(["plan", config, *few, "--set", "schedule.max_slots_per_dnn=3"]) == 0


def test_unlike_slots_count_in_the_wall_time_as_they_do_in_a_simulation(capsys: Capture) -> None:
    slow = json.dumps({**BACKEND, "workers": [{"speed": 0.2}]})
    alike = write_config(DNNS + EMULATED)
    usual = plan(capsys, alike, "--samples", "10000")["forecast"]
    config = write_config(DNNS + f"backend: {slow}\n")
    longer = plan(capsys, config, "--samples", "10000")["forecast"]
    assert longer["wall_time_s"] > 3 * usual["wall_time_s"]
    assert longer["lower_bound_s"] > 3 * usual["lower_bound_s"]
    assert main(["simulate", config, "--samples", "10000", "--json"]) == 0
    simulated = json.loads(capsys.readouterr().out)
    assert str(round(longer["wall_time_s"], 3))[:6] in json.dumps(simulated)


def test_the_rungs_of_a_pruning_rule_are_shown(capsys: Capture) -> None:
    config = write_config(DNNS.replace("max_epochs: 2", "max_epochs: 9") + EMULATED)
    assert plan(capsys, config)["prune"] is None
    overrides = ("--set", "prune.rule=asha", "--set", "prune.reduction=2")
    rungs = plan(capsys, config, *overrides)["prune"]["rungs"]
    assert [(r["epoch"], r["num_dnns"], r["num_promoted"]) for r in rungs] == [
        (1, 3, 1),
        (2, 1, 1),
        (4, 1, 1),
        (8, 1, 1),
    ]
    assert main(["plan", config, *overrides, "--set", "prune.min_epochs=4"]) == 0
    assert "prune asha: 1 of 3 DNNs train on after epoch 4, 1 of 1 after epoch 8" in capsys.readouterr().out
    assert main(["plan", config, *overrides, "--set", "prune.min_epochs=9"]) == 0
    assert "prune asha: all 3 DNNs train on, because there is no rung" in capsys.readouterr().out
    assert main(["plan", config, "--set", "prune.rule=median", "--set", "prune.warmup_epochs=3"]) == 0
    shown = capsys.readouterr().out
    assert "prune median: 3 DNNs are compared after every epoch from epoch 3 on" in shown
