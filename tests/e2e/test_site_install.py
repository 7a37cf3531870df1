"""`pip install '.[mpi,...]'` beside what a site has: its own TensorFlow, PyTorch and MPI, and no Horovod.

Nothing is downloaded: the packages of this environment stand in for those of the site.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path
from typing import Any

import pytest
import yaml

pytestmark = pytest.mark.e2e

PACKAGES = Path(sysconfig.get_paths()["purelib"])
NOT_OF_THE_SITE = re.compile(r"(hpcbal|horovod)\b|__editable__|__pycache__|.*\.(pth|egg-link)$")
OF_TENSORFLOW = re.compile(r"(tensorflow|keras)\b|tensorflow_cpu|tensorboard")


class Site:
    """A site's Python packages, and an environment of a user on top of them.

    Args:
        folder: where to make them.
        wheel: of hpcbal.
        extras: what to install it with.
        without: names of entries of this environment's packages that the site lacks.
    """

    def __init__(
        self, folder: Path, wheel: Path, extras: str, without: re.Pattern[str] | None = None
    ) -> None:
        of_site = folder / "site"
        of_site.mkdir()
        for entry in PACKAGES.iterdir():
            if not NOT_OF_THE_SITE.match(entry.name) and (without is None or not without.match(entry.name)):
                (of_site / entry.name).symlink_to(entry)
        if without is None:
            name_as_the_site_does(of_site)
        venv = folder / "venv"
        base = Path(getattr(sys, "_base_executable", sys.executable))
        subprocess.run([base, "-m", "venv", "--without-pip", venv], check=True)
        self.bin = venv / "bin"
        (own,) = venv.glob("lib/python3*/site-packages")
        (own / "site.pth").write_text(f"{of_site}\n", encoding="utf-8")
        self.pip("install", "--no-index", f"{wheel}[{extras}]")
        self.added = {path.name for path in own.iterdir()} - {"site.pth"}

    def pip(self, *arguments: str) -> None:
        command = [sys.executable, "-m", "pip", "--python", str(self.bin / "python"), *arguments]
        done = subprocess.run(command, env=environment(), capture_output=True, text=True, timeout=240)
        assert done.returncode == 0, done.stdout + done.stderr

    def hpcbal(self, folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
        command = [str(self.bin / "hpcbal"), *arguments]
        env = environment(
            PATH=f"{self.bin}{os.pathsep}{Path(sys.executable).parent}{os.pathsep}/usr/bin:/bin"
        )
        return subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, timeout=240)


def name_as_the_site_does(packages: Path) -> None:
    """A site's TensorFlow is called `tensorflow`, not `tensorflow-cpu` as the set-up's."""
    for found in packages.glob("tensorflow_cpu-*.dist-info"):
        renamed = packages / found.name.replace("tensorflow_cpu", "tensorflow")
        shutil.copytree(found, renamed)
        text = (renamed / "METADATA").read_text(encoding="utf-8")
        renamed.joinpath("METADATA").write_text(
            text.replace("Name: tensorflow-cpu", "Name: tensorflow").replace(
                "Name: tensorflow_cpu", "Name: tensorflow"
            ),
            encoding="utf-8",
        )
        found.unlink()


def environment(**more: str) -> dict[str, str]:
    """Without the clone on the path of modules; MPI's library is found as if its module were loaded."""
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    libraries = os.pathsep.join(filter(None, [f"{sys.prefix}/lib", kept.get("LD_LIBRARY_PATH")]))
    return kept | {"OMP_NUM_THREADS": "1", "LD_LIBRARY_PATH": libraries} | more


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory, wheel: Path) -> Site:
    return Site(tmp_path_factory.mktemp("both"), wheel, "mpi,tensorflow,torch,data")


@pytest.fixture(scope="module")
def torch_site(tmp_path_factory: pytest.TempPathFactory, wheel: Path) -> Site:
    return Site(tmp_path_factory.mktemp("torch"), wheel, "mpi,torch,data", OF_TENSORFLOW)


def config(slots: int, **backend: Any) -> dict[str, Any]:
    """A small network."""
    model = "hpcbal.models:softmax" if backend.get("name") == "emulated" else "hpcbal.models:mlp"
    dnn = {"name": "a", "model": model, "batch_size": 256, "stop": {"max_epochs": 1}}
    return {
        "schema": 1,
        "data": {"dataset": "hpcbal.data:digits"},
        "defaults": {"optimizer": {"name": "sgd", "learning_rate": 0.1}},
        "dnns": [dnn],
        "slots": {"per_node": slots},
        "schedule": {"max_slots_per_dnn": 2, "profiling": {"max_batches": 3, "timed_batches": 1}},
        "backend": backend,
        "output": {"dir": "out"},
    }


def write(folder: Path, slots: int = 2, **backend: Any) -> None:
    (folder / "run.yaml").write_text(yaml.safe_dump(config(slots, **backend)), encoding="utf-8")


def test_the_packages_of_the_site_are_used_and_none_is_added(site: Site, torch_site: Site) -> None:
    for each in (site, torch_site):
        assert {name.partition("-")[0] for name in each.added} == {"hpcbal"}


def test_networks_train_without_horovod_and_the_output_says_so(site: Site, tmp_path: Path) -> None:
    write(tmp_path)
    done = site.hpcbal(tmp_path, "run", "run.yaml")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "MPI sums the gradients (backend.collective: auto; Horovod is not installed)" in done.stdout


EMULATED = {"name": "emulated", "rates": {"a": {1: 900.0}}}


@pytest.mark.parametrize("verb", [["simulate", "--samples", "1000"], ["run"]], ids=lambda verb: verb[0])
def test_what_needs_no_tensorflow_works_without_it(torch_site: Site, tmp_path: Path, verb: list[str]) -> None:
    """test_core_install.py validates and plans, without PyTorch too."""
    write(tmp_path, slots=1, **EMULATED)
    done = torch_site.hpcbal(tmp_path, verb[0], "run.yaml", *verb[1:])
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_keras_model_is_refused_in_one_sentence_without_tensorflow(
    torch_site: Site, tmp_path: Path
) -> None:
    write(tmp_path, slots=1)
    done = torch_site.hpcbal(tmp_path, "run", "run.yaml")
    assert done.returncode == 2, done.stdout + done.stderr
    told = [line for line in done.stderr.splitlines() if "cannot be imported" in line]
    assert len(told) == 1, done.stderr
    assert "pip install 'hpcbal[tensorflow]'" in told[0]


def test_extras_accept_what_sites_have_today(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as files:
        (name,) = [name for name in files.namelist() if name.endswith(".dist-info/METADATA")]
        text = files.read(name).decode()
    for extra, wanted in (("mpi", "mpi4py"), ("tensorflow", "tensorflow"), ("torch", "torch")):
        assert re.search(rf'^Requires-Dist: {wanted}>=[\d.]+; extra == "{extra}"$', text, re.MULTILINE), text
