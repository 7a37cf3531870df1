"""Compare the decoding and resizing of JPEGs with `tf.data` and with the fastest bare loops, on one core.

    pip install simplejpeg opencv-python-headless   # both are there after scripts/test.sh
    python bench/bench_decode.py --json out.json

Files of 500x375 pixels, quality 90, are made of noise with the spectrum of photographs, and a contrast that
gives them the size of photographs of that quality. They lie in memory. Each contender is a process of its own
on the same core, and they take turns; a figure is the median over the turns of the ratio of samples per CPU
second, which other programs disturb little.

Ours is what a preprocessor does for a sample: `decode` and `resize`. `tf.data` decodes and resizes with
antialiasing. The bare loops decode with simplejpeg or OpenCV, at the least fraction of the size that is as
large as the result, and resize with OpenCV without antialiasing; the fastest one is the limit.

Figures: `decode72_vs_tfdata` (at least 1.8), `decode256_vs_tfdata` (at least 1.5), `decode72_of_limit` and
`decode256_of_limit` (at least 0.85), for results of 72x72 and 256x256 pixels; `decode72_psnr` and
`decode256_psnr`, dB, of the sample that differs most from what `decode: {exact: true}` gives (at least 40).
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from support.figures import parser_of, write_figures
from support.photographs import encoded, photograph
from support.starting import environment

from hpcbal.data import LabelSpec, PreprocessedSamples
from hpcbal.data.operations.decode import Decode
from hpcbal.data.operations.geometry import Resize

HEIGHT, WIDTH, QUALITY = 375, 500, 90
CONTRAST = 20.0
"""Standard deviation of the brightness; files have 0.4 bytes per pixel then, like photographs."""
SIZES = (72, 256)
Loop = Callable[[Sequence[bytes], int], object]


class Files:
    """A dataset of encoded images in memory."""

    num_classes = 2
    sample_spec = None
    label_spec = LabelSpec()

    def __init__(self, files: Sequence[bytes]) -> None:
        self._files = files

    def __len__(self) -> int:
        return len(self._files)

    def read(self, sample_id: int) -> tuple[bytes, int]:
        return self._files[sample_id], 0

    def describe(self, sample_id: int) -> str:
        return f"file {sample_id}"


def source(files: Sequence[bytes], size: int, exact: bool) -> PreprocessedSamples:
    """The samples as a preprocessor makes them."""
    return PreprocessedSamples(Files(files), [Decode(exact=exact), Resize(height=size, width=size)], 0, 0.0)


def hpcbal(exact: bool) -> Loop:
    made: dict[int, PreprocessedSamples] = {}

    def loop(files: Sequence[bytes], size: int) -> None:
        if size not in made:
            made[size] = source(files, size, exact)
        for sample_id in range(len(files)):
            made[size].sample(sample_id, 0, training=True)

    return loop


def tf_data() -> Loop:
    os.environ["TF_CPP_MIN_LOG_LEVEL"], os.environ["CUDA_VISIBLE_DEVICES"] = "3", "-1"
    import tensorflow as tf

    tf.config.threading.set_inter_op_parallelism_threads(1)
    tf.config.threading.set_intra_op_parallelism_threads(1)
    made: dict[int, Any] = {}

    def loop(files: Sequence[bytes], size: int) -> None:
        if size not in made:
            options = tf.data.Options()
            options.threading.private_threadpool_size = 1
            options.threading.max_intra_op_parallelism = 1
            made[size] = (
                tf.data.Dataset.from_tensor_slices(list(files))
                .map(lambda file: tf.image.resize(tf.io.decode_jpeg(file, 3), (size, size), antialias=True))
                .with_options(options)
            )
        for _ in made[size]:
            pass

    return loop


def simplejpeg_and_opencv() -> Loop:
    import cv2
    import simplejpeg

    cv2.setNumThreads(1)

    def loop(files: Sequence[bytes], size: int) -> None:
        for file in files:
            image = simplejpeg.decode_jpeg(
                file, fastdct=True, fastupsample=True, min_height=size, min_width=size, min_factor=2
            )
            cv2.resize(image, (size, size))

    return loop


def opencv() -> Loop:
    import cv2

    cv2.setNumThreads(1)

    def loop(files: Sequence[bytes], size: int) -> None:
        flags = cv2.IMREAD_REDUCED_COLOR_4 if 4 * size <= min(HEIGHT, WIDTH) else cv2.IMREAD_COLOR
        for file in files:
            cv2.resize(cv2.imdecode(np.frombuffer(file, np.uint8), flags), (size, size))

    return loop


CONTENDERS: dict[str, Callable[[], Loop]] = {
    "ours": lambda: hpcbal(exact=False),
    "exact": lambda: hpcbal(exact=True),
    "tf.data": tf_data,
    "simplejpeg and OpenCV": simplejpeg_and_opencv,
    "OpenCV": opencv,
}
LIMITS = ("simplejpeg and OpenCV", "OpenCV")


def work(name: str, folder: Path) -> None:
    """A contender: for each size on stdin, write the CPU seconds of a turn to stdout."""
    files = [path.read_bytes() for path in sorted(folder.iterdir())]
    loop = CONTENDERS[name]()
    for line in sys.stdin:
        began = time.process_time()
        loop(files, int(line))
        print(time.process_time() - began, flush=True)


class Contender:
    """A process that does its work when asked."""

    def __init__(self, name: str, folder: Path, core: int) -> None:
        self._process = subprocess.Popen(
            [sys.executable, __file__, "--contender", name, "--folder", str(folder)],
            env=environment(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        os.sched_setaffinity(self._process.pid, {core})

    def cpu_s(self, size: int) -> float:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{size}\n")
        self._process.stdin.flush()
        return float(self._process.stdout.readline())

    def end(self) -> None:
        self._process.communicate()


def psnr(one: NDArray[np.uint8], other: NDArray[np.uint8]) -> float:
    """Peak signal-to-noise ratio, dB."""
    return float(10 * np.log10(255.0**2 / np.mean((one.astype(float) - other) ** 2)))


def measure(folder: Path, num_turns: int) -> dict[str, float]:
    """Let the contenders take turns; print a table and return the figures."""
    files = [path.read_bytes() for path in sorted(folder.iterdir())]
    core = max(os.sched_getaffinity(0))
    contenders = {name: Contender(name, folder, core) for name in CONTENDERS}
    cpu_s: dict[tuple[str, int], list[float]] = {(name, size): [] for name in CONTENDERS for size in SIZES}
    try:
        for turn in range(-1, num_turns):  # the first one warms up
            for size in SIZES:
                for name, contender in contenders.items():
                    seconds = contender.cpu_s(size)
                    if turn >= 0:
                        cpu_s[name, size].append(seconds)
    finally:
        for contender in contenders.values():
            contender.end()

    def ratio(name: str, size: int) -> float:
        """Samples per second of ours over those of another one."""
        pairs = zip(cpu_s[name, size], cpu_s["ours", size], strict=True)
        return statistics.median(theirs / own for theirs, own in pairs)

    figures: dict[str, float] = {"file_bytes": statistics.mean(map(len, files))}
    print(f"images/s of one core, {len(files)} files of {figures['file_bytes'] / 1000:.0f} kB")
    for size in SIZES:
        for name in CONTENDERS:
            rate = len(files) / statistics.median(cpu_s[name, size])
            print(f"  to {size:3} px  {name:<22}{rate:8.0f}   ours over it {ratio(name, size):.2f}")
            figures[f"decode{size}_{name.replace(' ', '_')}_per_s"] = rate
        figures[f"decode{size}_vs_tfdata"] = ratio("tf.data", size)
        figures[f"decode{size}_of_limit"] = min(ratio(name, size) for name in LIMITS)
        figures[f"decode{size}_vs_exact"] = ratio("exact", size)
        made = [source(files, size, exact) for exact in (False, True)]
        pairs = [
            [each.sample(sample_id, 0, training=True)[0] for each in made] for sample_id in range(len(files))
        ]
        figures[f"decode{size}_psnr"] = min(psnr(*pair) for pair in pairs)
        print(
            f"  to {size:3} px  over tf.data {figures[f'decode{size}_vs_tfdata']:.2f}, of the limit "
            f"{figures[f'decode{size}_of_limit']:.2f}, PSNR at least {figures[f'decode{size}_psnr']:.1f} dB"
        )
    return figures


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("--files", type=int, default=24, help="number of files (default: 24)")
    parser.add_argument("--turns", type=int, default=15, help="turns of each contender (default: 15)")
    parser.add_argument("--contender", help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.contender:
        work(args.contender, args.folder)
        return
    needed = {"tensorflow": "tensorflow", "simplejpeg": "simplejpeg", "cv2": "opencv-python-headless"}
    missing = [package for name, package in needed.items() if importlib.util.find_spec(name) is None]
    if missing:
        raise SystemExit(f"this bench needs {' and '.join(missing)}: pip install {' '.join(missing)}")
    load = os.getloadavg()[0]
    with tempfile.TemporaryDirectory() as name:
        rng = np.random.default_rng(0)
        for index in range(args.files):
            image = photograph(rng, HEIGHT, WIDTH, CONTRAST)
            Path(name, f"{index:04}.jpg").write_bytes(encoded(image, quality=QUALITY))
        figures: dict[str, Any] = {"load_before": load, **measure(Path(name), args.turns)}
    write_figures(args.json, figures)


if __name__ == "__main__":
    main()
