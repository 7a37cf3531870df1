"""Measure one node: its memory, cores, libraries, devices, and the file system of the output."""

from __future__ import annotations

import hashlib
import importlib.util
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from hpcbal.cluster.cgroup import Cores
from hpcbal.cluster.devices import granted_gpus, visible_gpus
from hpcbal.cluster.started import batch_job, detect_launcher
from hpcbal.cluster.walltime import end_of_job
from hpcbal.dataplane.shared_memory import SHARED_MEMORY_DIR
from hpcbal.doctor import checks
from hpcbal.doctor.checks import Finding
from hpcbal.doctor.child import ask_python

IMPORT_S = 60.0
"""Libraries on a slow file system take long; more than this is a fault."""
FILES_S = 20.0
COMMAND_S = 5.0
NUM_TRIALS, ROUNDS = 5, 20_000

_IMPORTING: Mapping[str, str] = {
    "tensorflow": """
import json
import tensorflow as tf
built = tf.test.is_built_with_gpu_support()
facts = {"version": tf.__version__, "built": built, "devices": len(tf.config.list_physical_devices("GPU"))}
print(json.dumps(facts))
""",
    "torch": """
import json
import torch
versions = (torch.version.cuda, torch.version.hip, getattr(torch.version, "xpu", None))
devices = torch.cuda.device_count() or torch.xpu.device_count()
print(json.dumps({"version": torch.__version__, "built": any(versions), "devices": devices}))
""",
}

_FILES = """
import fcntl, json, os, sys, tempfile, time

folder = sys.argv[1]
facts = {"fault": "", "locks": True, "replaces": True, "appends": True}
at = folder
while not os.path.isdir(at) and os.path.dirname(at) != at:
    if os.path.lexists(at):
        facts["fault"] = f"not a directory ({os.path.basename(at)})"
    at = os.path.dirname(at)
try:
    with tempfile.TemporaryDirectory(prefix=".hpcbal-doctor-", dir=at) as made:
        one, two = os.path.join(made, "one"), os.path.join(made, "two")
        began = time.monotonic()
        with open(one, "wb") as file:
            file.write(b"new")
            file.flush()
            os.fsync(file.fileno())
        facts["seconds"] = time.monotonic() - began
        with open(two, "wb") as file:
            file.write(b"old")
        os.replace(one, two)
        with open(two, "rb") as file:
            facts["replaces"] = file.read() == b"new" and not os.path.exists(one)
        first, second = (os.open(one, os.O_WRONLY | os.O_CREAT | os.O_APPEND) for _ in range(2))
        for _ in range(100):
            os.write(first, b"a")
            os.write(second, b"b")
        facts["appends"] = os.stat(one).st_size == 200
        try:
            fcntl.flock(first, fcntl.LOCK_EX | fcntl.LOCK_NB)
            try:
                fcntl.flock(second, fcntl.LOCK_EX | fcntl.LOCK_NB)
                facts["locks"] = False
            except BlockingIOError:
                pass
        except OSError:
            facts["locks"] = False
        os.close(first)
        os.close(second)
except OSError as error:
    facts["fault"] = f"{error.strerror} ({os.path.basename(error.filename or at) or at})"
space = os.statvfs(at)
facts["free_bytes"] = space.f_bavail * space.f_frsize
facts["free_inodes"] = space.f_favail if space.f_files else -1
facts["kind"], length = "unknown", -1
with open("/proc/mounts") as lines:
    for line in lines:
        _, mount, kind = line.split()[:3]
        inside = os.path.realpath(at) == mount or os.path.realpath(at).startswith(mount.rstrip("/") + "/")
        if inside and len(mount) >= length:
            facts["kind"], length = kind, len(mount)
print(json.dumps(facts))
"""


def of_node(output: Path, *, imports: bool, shm: str = SHARED_MEMORY_DIR) -> list[Finding]:
    """Return the findings of this node, whoever else runs on it.

    Args:
        output: directory of the run, which need not exist.
        imports: whether to import the frameworks, which takes seconds.
        shm: where MPI keeps windows.
    """
    tasks: list[Callable[[], Sequence[Finding]]] = [
        lambda: [checks.shared_memory(shm, shared_space(shm))],
        lambda: checks.output(str(output), ask_python(_FILES, str(output.absolute()), limit_s=FILES_S)),
    ]
    if imports:
        tasks += [lambda: frameworks()]
    with ThreadPoolExecutor(len(tasks)) as pool:
        return [finding for part in pool.map(lambda task: task(), tasks) for finding in part]


def here() -> Finding:
    """Say in which job, and by which launcher, this process runs; a batch system may be asked."""
    job, now_s = batch_job(os.environ), time.time()
    end_s = None if job is None else end_of_job(os.environ, now_s)
    return checks.allocation(job, detect_launcher(os.environ), None if end_s is None else end_s - now_s)


def shared_space(path: str) -> dict[str, int] | None:
    """Return the space for windows, as `checks.shared_memory` takes it; None if nothing can be written."""
    try:
        with tempfile.TemporaryFile(dir=path) as file:
            file.write(b"\0" * 4096)
        space = os.statvfs(path)
    except OSError:
        return None
    return {
        "free_bytes": space.f_bavail * space.f_frsize,
        "total_bytes": space.f_blocks * space.f_frsize,
        "free_inodes": space.f_favail if space.f_files else -1,
    }


def frameworks() -> list[Finding]:
    """Import the frameworks that are installed, each in a child, at the same time."""
    installed = [name for name in _IMPORTING if importlib.util.find_spec(name) is not None]
    if not installed:
        return [checks.no_framework()]
    seen = visible_gpus()
    granted = granted_gpus(os.environ) or (f"{len(seen)} by the driver" if seen else None)

    with ThreadPoolExecutor(len(installed)) as pool:
        answers = list(pool.map(lambda name: ask_python(_IMPORTING[name], limit_s=IMPORT_S), installed))
    another_sees = any(answer.facts is not None and answer.facts["devices"] for answer in answers)
    return [
        checks.framework(name, answer, granted, another_sees=another_sees)
        for name, answer in zip(installed, answers, strict=True)
    ]


def alone() -> list[Finding]:
    """Return the findings that need all ranks of a node, for a process that is alone."""
    return [
        checks.devices([visible_gpus()]),
        checks.cores([Cores.of_this_process()], os.cpu_count() or 1, os.environ.get("OMP_NUM_THREADS")),
    ]


def container_name() -> str | None:
    """Return which container this process runs in; None outside of one, or if it does not show."""
    for name in ("APPTAINER_CONTAINER", "SINGULARITY_CONTAINER"):
        if os.environ.get(name):
            return f"Apptainer container {Path(os.environ[name]).name}"
    if Path("/run/.containerenv").exists():
        return "Podman container"
    return "Docker container" if Path("/.dockerenv").exists() else None


def version_of_mpirun() -> str | None:
    """Return what the first mpirun on PATH says about itself; None if there is none, or it says nothing."""
    mpirun = shutil.which("mpirun")
    if mpirun is None:
        return None
    try:
        done = subprocess.run(
            [mpirun, "--version"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=COMMAND_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.decode("utf-8", "replace")


def short_computation_s() -> float:
    """Return the seconds of a short computation on one core, the best of some: short load is ignored."""
    best_s = float("inf")
    for _ in range(NUM_TRIALS):
        began_s = time.perf_counter()
        hashlib.pbkdf2_hmac("sha256", b"hpcbal", b"salt", ROUNDS)
        best_s = min(best_s, time.perf_counter() - began_s)
    return best_s
