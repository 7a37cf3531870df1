"""`hpcbal plan` says how large the cache of decoded samples is, and what it finds."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from PIL import Image

from hpcbal.cli import main
from hpcbal.policies.rates import RateTable, profile_to_dict

Capture = pytest.CaptureFixture[str]
NUM_FILES = 40
RESIZE: dict[str, Any] = {"resize": {"height": 16, "width": 16}}
CROP: dict[str, Any] = {"random_crop": {"height": 12, "width": 12}}
EXACT: dict[str, Any] = {"decode": {"exact": True}}


@pytest.fixture(autouse=True)
def in_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for number in range(NUM_FILES):
        path = Path("images", f"class{number % 2}", f"{number:03}.jpg")
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(np.full((60, 80, 3), number, np.uint8)).save(path)


def planned(capsys: Capture, preprocessing: list[Any], cache: Any, *options: str) -> tuple[Any, str]:
    """The part of the plan that is about the cache, and the whole plan as text."""
    config = {
        "data": {"dataset": "hpcbal.data:image_folder", "args": {"path": "images"}},
        "preprocessing": preprocessing,
        "defaults": {"optimizer": {"name": "sgd", "learning_rate": 0.1}, "stop": {"max_epochs": 2}},
        "dnns": [{"name": "a", "model": "hpcbal.models:softmax_regression", "batch_size": 4}],
        "backend": {"name": "emulated", "rates": {"a": {1: 100}}},
        "dataplane": {"cache_bytes": cache, "ring_bytes": "1MiB", "block_samples": 4},
        "slots": {"per_node": 1},
    }
    Path("run.yaml").write_text(yaml.safe_dump(config), encoding="utf-8")
    assert main(["plan", "run.yaml", *options, "--json"]) == 0
    values = json.loads(capsys.readouterr().out)
    assert main(["plan", "run.yaml", *options]) == 0
    return values, capsys.readouterr().out


def test_a_cache_of_given_size_has_a_hit_rate(capsys: Capture) -> None:
    operations = [{"decode": {}}, RESIZE, CROP]
    values, text = planned(capsys, operations, "20KiB", "--open-data")
    cache = values["cache_per_node"]
    assert cache["sample_bytes"] == 16 * 16 * 3 + 64
    assert cache["bytes"] == 20 * 1024
    assert cache["hit_rate"] == ((20 * 1024 - 64 - 320) // 832) / NUM_FILES
    memory = values["memory_per_node"]
    assert memory["known_bytes"] == memory["ring_bytes"] + 20 * 1024 < 2**20
    assert "20.0 KiB, 832 B for each of 40 samples; it finds 60% of them from the second pass on" in text
    assert "resize before" not in text
    values, text = planned(capsys, operations, "20KiB", "--open-data", "--nodes", "2")
    assert values["cache_per_node"]["hit_rate_of_all_nodes"] == 1.0
    assert "it finds 60% of them from the second pass on, and 100% with the caches of all 2 nodes" in text
    cache = planned(capsys, operations, "1GiB", "--open-data")[0]["cache_per_node"]
    assert (cache["hit_rate"], cache["bytes"]) == (1.0, cache["whole_bytes"])
    _, text = planned(capsys, operations, "1MiB", "--memory", "1.5MiB")
    assert "set dataplane.cache_bytes to 524288 or less" in text


def test_auto_depends_on_the_memory_of_a_node(capsys: Capture) -> None:
    operations = [{"decode": {}}, RESIZE]
    values, text = planned(capsys, operations, "auto", "--open-data")
    cache = values["cache_per_node"]
    assert (cache["bytes"], cache["hit_rate"]) == (None, None)
    assert values["memory_per_node"]["cache_bytes"] == 0
    assert "hold all, if /dev/shm has twice that left" in text
    ring_bytes = values["memory_per_node"]["ring_bytes"]
    memory = str(2 * (ring_bytes + 2 * 9_000))  # half of it is in /dev/shm
    values, text = planned(capsys, operations, "auto", "--open-data", "--memory", memory)
    assert values["cache_per_node"]["bytes"] == 9_000
    assert 0.2 < values["cache_per_node"]["hit_rate"] < 0.3
    assert "/dev/shm, which is taken to have half of the node's memory (Linux's default); df /dev/sh" in text
    values, text = planned(capsys, operations, "auto", "--open-data", "--memory", "1GiB")
    assert "it finds 100% of them from the second pass on" in text
    assert "df /dev/shm" not in text
    _, text = planned(capsys, operations, "auto")
    assert "at most half of what the node has left, --open-data shows how many samples it holds" in text


def test_a_random_crop_before_the_resize_is_named_with_what_the_other_order_gives(capsys: Capture) -> None:
    options = ("--open-data", "--memory", "1GiB")
    values, text = planned(capsys, [{"decode": {}}, CROP, RESIZE], "auto", *options)
    assert values["cache_per_node"]["sample_bytes"] is None
    assert "none, because random_crop comes before resize" in text
    other = "resize before random_crop, which gives other samples, would take 832 B for each sample"
    assert f"{other}, and 100% found" in text
    values, text = planned(capsys, [EXACT, CROP, RESIZE], "200KiB", "--open-data")
    cache = values["cache_per_node"]
    assert cache["sample_bytes"] == 60 * 80 * 3 + 64
    assert cache["hit_rate"] == 14 / 40
    assert cache["hit_rate_with_resize_first"] == 1.0
    assert "14.1 KiB for each of 40 samples; it finds 35% of them" in text
    assert f"{other}, and 100% found" in text


def test_images_of_unequal_size_are_estimated_from_some_of_them(capsys: Capture) -> None:
    options = ("--set", "dataplane.max_sample_bytes=64KiB", "--open-data")
    values, text = planned(capsys, [EXACT], "1GiB", *options)
    assert values["cache_per_node"]["samples_measured"] == 0, "40 files are all read"
    assert "estimated" not in text
    for number in range(NUM_FILES, 200):
        path = Path("images", f"class{number % 2}", f"{number:03}.png")
        Image.fromarray(np.zeros((40, 20 + number % 50, 3), np.uint8)).save(path)
    values, text = planned(capsys, [EXACT], "1GiB", *options)
    cache = values["cache_per_node"]
    assert cache["samples_measured"] == 64
    assert (cache["hit_rate"], cache["bytes"]) == (1.0, cache["whole_bytes"])
    assert "for each of 200 samples (estimated from 64 samples); it finds 100% of them" in text
    sizes = [3 * 40 * (20 + number % 50) for number in range(NUM_FILES, 200)] + NUM_FILES * [60 * 80 * 3]
    assert sum(sizes) < cache["whole_bytes"] < 1.5 * sum(sizes)
    rates = {"backend": {"name": "tensorflow", "rates": {}}}
    config = yaml.safe_load(Path("run.yaml").read_text(encoding="utf-8")) | rates
    Path("run.yaml").write_text(yaml.safe_dump(config), encoding="utf-8")
    assert main(["plan", "run.yaml", *options]) == 2
    text = capsys.readouterr().err
    assert "for each of 200 samples (estimated from 64 samples); it finds 100% of them" in text
    assert "no training rates" in text


def test_without_a_cache_nothing_is_said(capsys: Capture) -> None:
    values, text = planned(capsys, [{"decode": {}}, RESIZE], 0, "--open-data")
    assert values["cache_per_node"] is None
    assert "cache of decoded samples" not in text


def test_trainers_that_make_batches_write_into_the_cache_too(capsys: Capture) -> None:
    sizes = {}
    for paradigm in ("global", "elastic", "independent", "auto"):
        option = ("--set", f"schedule.paradigm={paradigm}")
        values, _ = planned(capsys, [{"decode": {}}, RESIZE], "1MiB", "--open-data", *option)
        sizes[paradigm] = values["cache_per_node"]["whole_bytes"]
    assert sizes["elastic"] == sizes["independent"] == sizes["auto"] > sizes["global"]


def test_without_rounds_the_ring_is_not_larger_than_a_batch(capsys: Capture) -> None:
    rings = {}
    for paradigm in ("global", "elastic", "independent", "auto"):
        option = ("--set", f"schedule.paradigm={paradigm}")
        values, text = planned(capsys, [{"decode": {}}, RESIZE], "auto", "--open-data", *option)
        rings[paradigm] = values["memory_per_node"]["ring_bytes"]
        assert "memory per node: ring up to " in text
    assert rings["elastic"] == rings["independent"] < rings["auto"] / 5 == rings["global"] / 5


def test_predictions_know_how_much_the_cache_holds(capsys: Capture) -> None:
    """40 samples, two passes, made at 10 a second: 4 s for the first, less for the second."""
    operations, table = [{"decode": {}}, RESIZE, CROP], RateTable({"a": {1: 1000.0}}, 1)
    profile = profile_to_dict(table, {"a": "key"}) | {"preprocessing": {"samples_per_s": 10.0}}
    Path("profile.json").write_text(json.dumps(profile), encoding="utf-8")
    rated = ("--profile", "profile.json", "--set", "schedule.paradigm=global")
    for cache, rate in (("20KiB", 24 / 40), ("1GiB", 1.0), (0, 0.0)):
        values, _ = planned(capsys, operations, cache, "--open-data", *rated)
        second_s = max(4.0 * (1.0 - rate), 0.04)
        assert values["forecast"]["wall_time_s"] == pytest.approx(4.0 + second_s, abs=0.01)
    assert main(["simulate", "run.yaml", *rated, "--hit-rate", "0.5", "--json"]) == 0
    (row,) = json.loads(capsys.readouterr().out)["rows"]
    assert row["makespan_s"] == pytest.approx(6.0, abs=0.01)
