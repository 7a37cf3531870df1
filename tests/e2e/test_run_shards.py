"""Shards train as a folder of the same images does: with a cache, in parts, and with broken images.

Damaged shards are refused in tests/unit/data; test_run_refusals.py shows how a run ends then.
"""

from __future__ import annotations

import io
import tarfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from PIL import Image
from pyarrow import parquet

pytestmark = pytest.mark.e2e

NUM_SAMPLES = 120
BROKEN = 2
STEPS = """\
import numpy as np

from hpcbal.data.spec import SampleSpec


class Flat:
    def output_spec(self, spec):
        return SampleSpec.of((6,), "float64")

    def apply(self, sample, rng):
        return sample.reshape(6).astype(np.float64)
"""
PREPROCESSING = [
    {"decode": {}},
    {"resize": {"height": 2, "width": 1}},
    {"random_flip": {"vertical": True}},
    {"normalize": {}},
    {"steps:Flat": {}},
]

Samples = list[tuple[bytes, int]]


def samples() -> Samples:
    """JPEGs of three classes, one class after the other, and two files that are none."""
    rng = np.random.default_rng(4)
    centres = rng.integers(0, 256, (3, 2, 1, 3))
    made = []
    for number in range(NUM_SAMPLES):
        label = 3 * number // NUM_SAMPLES
        pixels = np.repeat(np.repeat(centres[label], 20, axis=0), 30, axis=1)
        noisy = (pixels + rng.normal(0, 40, pixels.shape)).clip(0, 255).astype(np.uint8)
        file = io.BytesIO()
        Image.fromarray(noisy).save(file, "JPEG")
        made.append((b"broken" if number in (7, 87) else file.getvalue(), label))
    return made


def write_folder(folder: Path, part: Samples) -> None:
    for image, label in part:
        path = folder / f"class{label}" / f"{len(list(folder.glob('*/*'))):03}.jpg"
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(image)


def write_tar(path: Path, part: Samples) -> None:
    with tarfile.open(path.with_suffix(".tar"), "w") as archive:
        for number, (image, label) in enumerate(part):
            for name, content in ((f"{number}.jpg", image), (f"{number}.cls", str(label).encode())):
                info = tarfile.TarInfo(name)
                info.size = len(content)
                archive.addfile(info, io.BytesIO(content))


def write_parquet(path: Path, part: Samples) -> None:
    images = [{"bytes": image, "path": None} for image, _ in part]
    kind = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
    table = pa.table({"image": pa.array(images, kind), "label": [label for _, label in part]})
    parquet.write_table(table, path.with_suffix(".parquet"), row_group_size=7)


WRITERS: dict[str, Callable[[Path, Samples], None]] = {
    "tar_shards": write_tar,
    "parquet_shards": write_parquet,
}
SHARED = {"slots": {"per_node": 1, "preprocessors_per_node": 2}}
PARTITIONED = {
    "dnns": [{"name": "a", "model": "toys:toy", "batch_size": 24, "stop": {"max_epochs": 4}}],
    "backend": {"name": "emulated", "precision": "float64", "rates": {"a": {1: 900, 2: 1800}}},
    "balance": {"policy": "fixed", "shares": [1, 1]},
    "slots": {"per_node": 2},
}


@pytest.fixture
def data(lab):
    """`images/<name of the dataset>` in the folder of the runs."""
    (lab.folder / "steps.py").write_text(STEPS, encoding="utf-8")
    whole = samples()
    folder = lab.folder / "images" / "image_folder"
    folder.mkdir(parents=True)
    write_folder(folder, whole)
    for name, write in WRITERS.items():
        folder = lab.folder / "images" / name
        folder.mkdir()
        write(folder / "train-0", whole[:70])
        write(folder / "train-1", whole[70:])
    return lab


def train(lab, name: str, access: str, sections: dict) -> tuple:
    """Train on one of the datasets; return what the DNNs have become."""
    lab.configure(
        data={
            "dataset": f"hpcbal.data:{name}",
            "args": {"path": f"images/{name}"},
            "max_bad_fraction": 0.1,
            "access": access,
            "max_traversal_gap": None,
        },
        preprocessing=PREPROCESSING,
        dataplane={"ring_bytes": "8KiB", "block_samples": 8},
        **sections,
    )
    lab.out = lab.folder / f"{name}-{access}"
    done = lab.run("run", "run.yaml", "--output", lab.out.name)
    assert done.code == 0, done
    assert "Traceback" not in done.err, done
    return lab.outcome()


@pytest.mark.parametrize(
    ("access", "sections", "name"),
    [("shared", SHARED, "tar_shards"), ("partitioned", PARTITIONED, "parquet_shards")],
    ids=["shared", "partitioned"],
)
def test_shards_train_as_a_folder_does(data, same_outcome, access, sections, name):
    """tests/unit/data reads each format, TFRecord files too."""
    expected = train(data, "image_folder", access, sections)
    same_outcome(train(data, name, access, sections), expected)
    if access == "shared":
        last = data.events("run-finished")[-1]
        num_decoded = last.num_preprocessed - last.num_from_cache
        assert NUM_SAMPLES - BROKEN <= num_decoded <= 1.1 * NUM_SAMPLES  # both preprocessors may decode one
