"""Encoded images are decoded once: the same weights as without the cache, also when ranks are killed."""

from __future__ import annotations

import os
import signal
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

pytestmark = pytest.mark.e2e

NUM_FILES = 120
PREPROCESSING = [
    {"decode": {}},
    {"resize": {"height": 2, "width": 1}},
    {"random_flip": {"vertical": True}},
    {"random_brightness": {"factor": 0.2}},
    {"normalize": {}},
    {"steps:Flat": {}},
]
STEPS = """\
import numpy as np

from hpcbal.data.spec import SampleSpec


class Flat:
    def output_spec(self, spec):
        return SampleSpec.of((6,), "float64")

    def apply(self, sample, rng):
        return sample.reshape(6).astype(np.float64)
"""


def write_images(folder: Path) -> None:
    rng = np.random.default_rng(4)
    centres = rng.integers(0, 256, (3, 2, 1, 3))
    for number in range(NUM_FILES):
        label = number % 3
        path = folder / "images" / f"class{label}" / f"{number:03}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        if number % 40 == 7:
            path.write_bytes(b"broken")
            continue
        pixels = np.repeat(np.repeat(centres[label], 6, axis=0), 7, axis=1)
        noisy = (pixels + rng.normal(0, 40, pixels.shape)).clip(0, 255).astype(np.uint8)
        Image.fromarray(noisy).save(path)


def configure(lab, cache_bytes, pace_s=0.0, **sections) -> None:
    def slowly(config) -> None:
        for dnn in config["dnns"]:
            dnn["args"] = {"pace_s": pace_s}

    lab.configure(
        slowly,
        **{
            "data": {
                "dataset": "hpcbal.data:image_folder",
                "args": {"path": "images"},
                "max_bad_fraction": 0.1,
            },
            "preprocessing": PREPROCESSING,
            "slots": {"per_node": 2, "preprocessors_per_node": 2},
            "dataplane": {"ring_bytes": "8KiB", "block_samples": 8, "cache_bytes": cache_bytes},
            **sections,
        },
    )


@pytest.fixture
def images(lab):
    write_images(lab.folder)
    (lab.folder / "steps.py").write_text(STEPS, encoding="utf-8")
    return lab


def run_as(lab, name: str) -> tuple[Any, Any, Mapping[str, Any]]:
    """Run into `name`: what it prints, the last line of its ledger, and what its DNNs have become."""
    lab.out = lab.folder / name
    done = lab.run("run", "run.yaml", "--output", name)
    assert done.code == 0, done
    return done, lab.events("run-finished")[-1], lab.outcome()


def test_what_a_cache_holds_is_decoded_once_and_changes_no_weight(images, same_outcome):
    """Without rounds: no cache, a whole one, and a small one in a run that is killed.

    DNNs start with the same samples at the same moment; preprocessors fill the cache beside them. Of runs in
    rounds, test_run_shards.py shows that samples are decoded once, test_run_nodes.py that weights stay.
    """
    lab = images
    elastic = {"schedule": {"paradigm": "elastic", "max_slots_per_dnn": 1}}
    configure(lab, 0, **elastic, slots={"per_node": 1})  # one DNN after the other
    done, last, plain = run_as(lab, "plain")
    assert "in the cache" not in done.out
    passes = len(lab.events("epoch-done"))
    assert last.num_preprocessed - last.num_from_cache >= passes * (NUM_FILES - 3)

    elastic["slots"] = {"per_node": 3, "preprocessors_per_node": 1}
    configure(lab, "auto", **elastic)
    done, last, outcome = run_as(lab, "whole")
    num_decoded = last.num_preprocessed - last.num_from_cache
    # Broken samples are read again in every pass; two ranks may claim a sample at the same moment.
    assert NUM_FILES - 3 <= num_decoded <= 1.05 * NUM_FILES
    assert f"read {num_decoded} from the dataset, and found {last.num_from_cache} in the cache" in done.out
    same_outcome(outcome, plain)

    lab.out = lab.folder / "out"
    configure(lab, "6KiB", pace_s=0.002, checkpoint={"interval_s": 0.03}, **elastic)
    running = lab.start()
    running.until(lambda: len(lab.events("epoch-done")) >= 2, "epoch")
    running.signal_rank(1, signal.SIGKILL)
    done = running.wait()
    assert done.code == 1, done
    assert "rank 1 (preprocessor, pid " in done.err, done
    assert lab.run().code == 0
    same_outcome(lab.outcome(), plain)


def test_one_rank_lists_the_files_and_a_second_start_none(images):
    """The cache of the first start holds no sample, which is reported. That of the second holds some, and its
    choice of the schedule knows how many."""
    lab = images
    for folder in (lab.folder / "images").iterdir():
        os.utime(folder, (1e9, 1e9))  # what has just changed is not kept
    args = {"path": "images", "index": "files.npz"}
    data = {"dataset": "hpcbal.data:image_folder", "args": args, "max_bad_fraction": 0.1}
    slots = {"per_node": 1, "preprocessors_per_node": 2}

    def num_lists() -> int:
        logs = (lab.out / "logs").glob("rank-*.log")
        return sum(log.read_text().count("looking through all data in images for an index") for log in logs)

    configure(lab, 1000, data=data, slots=slots)
    done, *_ = run_as(lab, "first")
    assert num_lists() == 1
    assert done.out.count("] warning: dataplane.cache_bytes: got 1000, which holds no sample (") == 1
    configure(lab, "6KiB", data=data, slots={"per_node": 1}, schedule={"paradigm": "auto"})
    _, last, _ = run_as(lab, "again")
    assert num_lists() == 0
    assert 0 < last.num_from_cache < last.num_preprocessed - NUM_FILES
    (rate,) = {choice.hit_rate for choice in lab.events("schedule-chosen")}
    assert 0.0 < rate < 1.0
