"""`augment` of a DNN: operations of preprocessing, refused where samples would not fit any more."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from hpcbal.config import DnnConfig, load_ensemble
from hpcbal.data import LabelSpec, PreprocessedSamples, SampleSpec, build_operations, open_source
from hpcbal.data.augmentation import Augmentation, check_augmentations
from hpcbal.errors import ConfigError, DataError, InputError, UserCodeError

MODULE = """\
import numpy as np
from hpcbal.data import SampleSpec

def in_place(sample, rng):
    sample += np.uint8(rng.integers(1, 9))
    return sample

def picky(sample, rng):
    if sample.flat[0] == 5:
        raise ValueError("five")
    return sample

def endless(sample, rng):
    return np.full_like(sample, np.inf)

def forgetful(sample, rng):
    np.flip(sample)

def emptied(sample, rng):
    return sample[:0]

class Wide:
    def output_spec(self, spec):
        return SampleSpec.of((*spec.shape, 2), spec.dtype)

    def apply(self, sample, rng):
        return np.stack([sample, sample], -1)

class Broken:
    def __init__(self):
        raise RuntimeError("no luck")
"""
PAGE = Path(__file__).parents[3] / "docs" / "your-own-model-and-data.md"
IMAGES = SampleSpec.of((6, 6, 3), "uint8")
FLOATS = SampleSpec.of((4,), "float32")


@pytest.fixture(autouse=True)
def own(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "augments.py").write_text(MODULE)
    monkeypatch.syspath_prepend(str(tmp_path))


def dnn(*operations: Any, name: str = "a", **keys: Any) -> DnnConfig:
    given = {"optimizer": {"name": "sgd", "learning_rate": 0.1}, "batch_size": 8, "stop": {"max_epochs": 1}}
    return DnnConfig.model_validate(
        {"name": name, "model": "m:f", **given, "augment": list(operations), **keys}
    )


def image(number: int = 0) -> NDArray[np.uint8]:
    return np.random.default_rng(number).integers(0, 256, (6, 6, 3), np.uint8)


class Images:
    """Random images, or the same as floating-point numbers."""

    num_classes = 3
    label_spec = LabelSpec()
    sample_spec = IMAGES

    def __init__(self, broken: int = 0) -> None:
        self.broken = broken

    def __len__(self) -> int:
        return 24

    def read(self, sample_id: int) -> tuple[NDArray[Any], int]:
        if sample_id < self.broken:
            raise ValueError("the file is empty")
        return np.full((6, 6, 3), sample_id, np.uint8), sample_id % 3

    def describe(self, sample_id: int) -> str:
        return f"image {sample_id}"


def source(*operations: tuple[str, dict[str, Any]], broken: int = 0) -> PreprocessedSamples:
    steps = build_operations(operations)
    return PreprocessedSamples(Images(broken), steps, seed=1, validation_fraction=0.25, on_device=True)


def test_a_sample_is_not_written_to() -> None:
    given = image()
    kept = given.copy()
    given.flags.writeable = False
    made = Augmentation(dnn("augments:in_place", "random_flip"), IMAGES, 1).apply(given, 3, 0)
    np.testing.assert_array_equal(given, kept)
    assert not np.array_equal(made, kept)
    assert made.flags.c_contiguous
    assert (made.shape, made.dtype) == (kept.shape, kept.dtype)


def test_a_crop_may_be_resized_to_what_it_was() -> None:
    crop, resize = {"random_crop": {"height": 4, "width": 4}}, {"resize": {"height": 6, "width": 6}}
    made = Augmentation(dnn(crop, resize), IMAGES, 1).apply(image(), 0, 0)
    assert IMAGES.admits(made)


@pytest.mark.parametrize(
    ("operation", "spec", "text"),
    [
        (
            {"random_crop": {"height": 4, "width": 4}},
            IMAGES,
            r"DNN a: augment: turns samples \(6, 6, 3\) uint8 into \(4, 4, 3\) uint8, allowed: the same",
        ),
        (
            {"random_crop": {"height": 9, "width": 4}},
            IMAGES,
            r"DNN a: augment\.0\.random_crop\.height: got 9",
        ),
        ("random_flip", FLOATS, r"DNN a: augment\.0\.random_flip: needs images"),
        ("augments:Wide", FLOATS, r"turns samples \(4\) float32 into \(4, 2\) float32"),
        (
            {"center_crop": {"height": 4, "width": 4}},
            SampleSpec.of((None, None, 3), "uint8", 300),
            r"turns samples \(any, any, 3\) uint8 into \(4, 4, 3\) uint8",
        ),
    ],
)
def test_lists_that_do_not_fit_are_refused(operation: Any, spec: SampleSpec, text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        Augmentation(dnn(operation), spec, 1)


def test_what_cannot_be_imported_or_made_is_refused() -> None:
    with pytest.raises(InputError, match="augments"):
        Augmentation(dnn("augments:nothing"), IMAGES, 1)
    with pytest.raises(UserCodeError, match=r"DNN a: augment: augments:Broken: making it failed: .*no luck"):
        Augmentation(dnn("augments:Broken"), IMAGES, 1)
    with pytest.raises(ConfigError, match=r"DNN a: augment\.1\.augments:picky has no argument 'so'"):
        Augmentation(dnn("random_flip", {"augments:picky": {"so": 1}}), IMAGES, 1)


@pytest.mark.parametrize(
    ("operation", "reason"),
    [
        ("augments:picky", r"augments\.py:10: ValueError: five"),
        ("augments:endless", "5 infinite of 5 values afterwards"),
        ("augments:forgetful", "returned None"),
        ("augments:emptied", r"it is empty \(shape \(0,\)\) afterwards"),
    ],
)
def test_a_sample_that_an_operation_cannot_use_is_named(operation: str, reason: str) -> None:
    spec = SampleSpec.of((None,), "float32", 400)
    with pytest.raises(DataError, match=f"DNN a: augment: sample 17: .*{reason}"):
        Augmentation(dnn(operation), spec, 1).apply(np.full(5, 5, np.float32), 17, 0)


def test_memory_that_is_full_is_no_fault_of_the_sample(monkeypatch: pytest.MonkeyPatch) -> None:
    augmentation = Augmentation(dnn("random_flip"), IMAGES, 1)

    def full(*given: Any) -> None:
        raise MemoryError

    monkeypatch.setattr("hpcbal.data.pipeline.Pipeline.complete", full)
    with pytest.raises(MemoryError):
        augmentation.apply(image(), 0, 0)


def test_bytes_before_a_normalize_on_the_device_are_tried() -> None:
    jitter = dnn({"color_jitter": {"brightness": 0.5}})
    check_augmentations([jitter], source(("normalize", {"mean": 0.5, "std": 0.1})), 1)


def test_mixed_samples_are_tried_and_broken_ones_are_left_out() -> None:
    mixed = source(("mixup", {}), ("normalize", {}), broken=20)
    check_augmentations([dnn("augments:picky"), dnn()], mixed, 1)
    check_augmentations([dnn("augments:picky")], source(broken=24), 1)  # `check_first` refuses such data
    with pytest.raises(DataError, match=r"DNN b: augment: sample 5: .*five"):
        check_augmentations([dnn(), dnn("augments:picky", name="b")], source(), 1, num_samples=24)


def test_equal_lists_are_tried_once(monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[int] = []
    monkeypatch.setattr(
        Augmentation, "apply", lambda self, sample, sample_id, moment: tried.append(sample_id)
    )
    check_augmentations([dnn("random_flip", name=name) for name in "abc"], source(), 1, num_samples=5)
    assert len(tried) == len(set(tried)) == 5


def test_dnns_that_have_joined_fail_alone() -> None:
    own, joined = dnn("augments:in_place"), [dnn("augments:picky", name=name) for name in "bc"]
    small = dnn({"center_crop": {"height": 4, "width": 4}}, name="d")
    found = check_augmentations([*joined, small, own], source(), 1, "bcd")
    assert sorted(found) == ["b", "c", "d"]
    assert found["c"].startswith("augment: sample ")
    assert found["d"].startswith("augment: turns samples")
    with pytest.raises(DataError, match="DNN b: augment: sample"):
        check_augmentations([*joined, own], source(), 1, "ca")


def test_the_example_of_the_page_changes_the_samples_of_the_networks_that_ask_for_it(tmp_path: Path) -> None:
    """tests/e2e/test_run_torch.py trains one of its operations beside networks without any."""
    section = PAGE.read_text().partition("## Augmentation of one DNN\n")[2].partition("\n## ")[0]
    (text,) = re.findall(r"^```yaml\n(.*?)^```$", section, re.DOTALL | re.MULTILINE)
    (tmp_path / "run.yaml").write_text(text, encoding="utf-8")
    config = load_ensemble(tmp_path / "run.yaml", check_imports=True)
    source = open_source(config)
    assert check_augmentations(config.dnns, source, config.seed) == {}
    made = {}
    for each in config.dnns:
        samples = np.stack([source.sample(int(i), 0, training=True)[0] for i in source.train_ids[:20]])
        if each.augment:
            augmentation = Augmentation(each, source.sample_spec, config.seed)
            samples = np.stack([augmentation.apply(x, i, 0) for i, x in enumerate(samples)])
        made[each.name] = samples
    plain, cropped, cut = (
        made.pop(f"resnet-{name}") for name in ("none", "random_crop", "random_crop-cutout")
    )
    assert not made
    assert not np.array_equal(cropped, plain)
    assert not np.array_equal(cut, cropped)
