"""Encoded images are decoded once: the same weights as without the cache, also when ranks are killed."""

from __future__ import annotations

import os
import signal
from pathlib import Path

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


def test_samples_are_decoded_once_and_a_killed_run_ends_the_same(images, same_outcome):
    lab = images
    configure(lab, 0)
    done = lab.run("run", "run.yaml", "--output", "plain")
    assert done.code == 0, done
    assert "in the cache" not in done.out
    lab.out = lab.folder / "plain"
    plain = lab.outcome()

    configure(lab, "auto")
    lab.out = lab.folder / "whole"
    done = lab.run("run", "run.yaml", "--output", "whole")
    assert done.code == 0, done
    last = lab.events("run-finished")[-1]
    num_decoded = last.num_preprocessed - last.num_from_cache
    # Blocks are made by two preprocessors, and both may be at the same sample, in two passes.
    assert NUM_FILES - 3 <= num_decoded <= 1.05 * NUM_FILES
    assert f"read {num_decoded} from the dataset, and found {last.num_from_cache} in the cache" in done.out
    same_outcome(lab.outcome(), plain)

    lab.out = lab.folder / "out"
    configure(lab, "auto", pace_s=0.002, checkpoint={"interval_s": 0.03})
    running = lab.start()
    running.until(lambda: len(lab.events("epoch-done")) >= 2, "epoch")
    running.signal_rank(1, signal.SIGKILL)  # a preprocessor
    assert running.wait().code != 0
    done = lab.run()
    assert done.code == 0, done
    same_outcome(lab.outcome(), plain)


def test_dnns_that_train_without_rounds_share_what_is_decoded(images, same_outcome):
    """They start with the same samples at the same moment; preprocessors fill the cache beside them."""
    lab = images
    outcomes = []
    for cache_bytes in ("auto", 0):
        lab.out = lab.folder / f"out-{cache_bytes}"
        one_slot = {"paradigm": "elastic", "max_slots_per_dnn": 1}
        configure(lab, cache_bytes, schedule=one_slot, slots={"per_node": 3, "preprocessors_per_node": 1})
        done = lab.run("run", "run.yaml", "--output", lab.out.name)
        assert done.code == 0, done
        last = lab.events("run-finished")[-1]
        num_decoded = last.num_preprocessed - last.num_from_cache
        passes = len(lab.events("epoch-done"))
        if cache_bytes == "auto":
            # Broken samples are read again in every pass; two ranks may claim a sample at the same moment.
            assert NUM_FILES - 3 <= num_decoded <= 1.05 * NUM_FILES
        else:
            assert num_decoded >= passes * (NUM_FILES - 3)
        outcomes.append(lab.outcome())
    same_outcome(*outcomes)


def test_a_small_cache_keeps_what_fits(images, same_outcome):
    lab = images
    one = {
        "dnns": [{"name": "a", "model": "toys:toy"}],
        "backend": {"name": "emulated", "rates": {"a": {1: 9000}}},
    }
    configure(lab, "6KiB", **one)
    done = lab.run()
    assert done.code == 0, done
    last = lab.events("run-finished")[-1]
    assert 0 < last.num_from_cache < last.num_preprocessed - NUM_FILES
    small = lab.outcome()
    lab.out = lab.folder / "plain"
    configure(lab, 0, **one)
    assert lab.run("run", "run.yaml", "--output", "plain").code == 0
    same_outcome(small, lab.outcome())


def test_a_cache_that_holds_no_sample_is_reported(images):
    lab = images
    configure(lab, 1000, slots={"per_node": 1})
    done = lab.run()
    assert done.code == 0, done
    assert done.out.count("] warning: dataplane.cache_bytes: got 1000, which holds no sample (") == 1


def test_one_rank_lists_the_files_and_a_second_start_none(images):
    lab = images
    for folder in (lab.folder / "images").iterdir():
        os.utime(folder, (1e9, 1e9))  # what has just changed is not kept
    args = {"path": "images", "index": "files.npz"}
    data = {"dataset": "hpcbal.data:image_folder", "args": args, "max_bad_fraction": 0.1}
    slots = {"per_node": 1, "preprocessors_per_node": 3}
    configure(lab, 0, data=data, slots=slots)

    def num_lists() -> int:
        logs = (lab.out / "logs").glob("rank-*.log")
        return sum(log.read_text().count("looking through all data in images for an index") for log in logs)

    assert lab.run().code == 0
    assert num_lists() == 1
    lab.out = lab.folder / "again"
    done = lab.run("run", "run.yaml", "--output", "again")
    assert done.code == 0, done
    assert num_lists() == 0


def test_a_choice_of_the_schedule_knows_how_much_the_cache_holds(images):
    lab = images
    for cache_bytes in ("auto", "6KiB"):
        configure(lab, cache_bytes, schedule={"paradigm": "auto"})
        lab.out = lab.folder / f"run-{cache_bytes}"
        done = lab.run("run", "run.yaml", "--output", lab.out.name)
        assert done.code == 0, done
        rates = {choice.hit_rate for choice in lab.events("schedule-chosen")}
        assert len(rates) == 1
        (rate,) = rates
        assert rate == 1.0 if cache_bytes == "auto" else 0.0 < rate < 1.0
