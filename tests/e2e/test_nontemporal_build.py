"""setup.py builds the C copy where compiler and headers of Python are there, and continues without them."""

from __future__ import annotations

import importlib.util
import os
import platform
import shutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

pytestmark = pytest.mark.e2e

ROOT = Path(__file__).parents[2]


def build(folder: Path, **environ: str) -> list[Path]:
    """Run setup.py on the C source alone; the compiled modules."""
    source = folder / "hpcbal" / "dataplane"
    source.mkdir(parents=True)
    shutil.copy(ROOT / "setup.py", folder)
    shutil.copy(ROOT / "hpcbal" / "dataplane" / "_streaming.c", source)
    done = subprocess.run(
        [sys.executable, "setup.py", "build_ext", "--build-lib", "out"],
        cwd=folder,
        env={**os.environ, **environ},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return list(folder.glob("out/**/*.so"))


def test_no_compiler_is_no_error(tmp_path: Path) -> None:
    assert build(tmp_path, CC="no-such-compiler") == []


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> ModuleType:
    """The C module, built for this test; so it says nothing of one that lies in the clone."""
    (path,) = build(tmp_path_factory.mktemp("build"))
    spec = importlib.util.spec_from_file_location("_streaming", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_streams_on_x86_64_only(compiled: ModuleType) -> None:
    assert (platform.machine() in ("x86_64", "AMD64")) == compiled.STREAMS


def test_every_byte_arrives_and_no_other_byte_changes(compiled: ModuleType) -> None:
    rng = np.random.default_rng(0)
    for _ in range(500):
        target_at, source_at, num_bytes = rng.integers(0, [80, 80, 1000])
        source, target = rng.integers(0, 256, (2, 1200), np.uint8)
        expected = target.copy()
        expected[target_at : target_at + num_bytes] = source[source_at : source_at + num_bytes]
        compiled.copy(target[target_at : target_at + num_bytes], source[source_at : source_at + num_bytes])
        np.testing.assert_array_equal(target, expected)


def test_what_cannot_be_copied_is_refused_and_nothing_is_written(compiled: ModuleType) -> None:
    target, source = np.zeros(256, np.uint8), np.ones(256, np.uint8)
    with pytest.raises(ValueError, match="the target has 256 bytes, the source has 255"):
        compiled.copy(target, source[:255])
    with pytest.raises(ValueError, match="contiguous"):
        compiled.copy(target[:128], source[::2])
    with pytest.raises(TypeError, match="2 arguments, got 1"):
        compiled.copy(target)
    frozen = target.view()
    frozen.flags.writeable = False
    with pytest.raises((ValueError, BufferError), match=r"read-only|not writ"):
        compiled.copy(frozen, source)
    assert not target.any()


def test_overlapping_memory_is_refused(compiled: ModuleType) -> None:
    memory = np.arange(256, dtype=np.uint8)
    for target, source in ((memory[:128], memory[127:255]), (memory[64:192], memory[:128])):
        with pytest.raises(ValueError, match="overlap in memory"):
            compiled.copy(target, source)
    compiled.copy(memory[:128], memory[128:])
    assert memory[:128].tolist() == list(range(128, 256))
