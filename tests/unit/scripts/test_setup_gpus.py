"""The set-up notices GPUs, or a variable says so; stand-ins take the place of the driver, CUDA and MPI."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from conftest import Machine

CHOOSE = 'take_lock; choose_device; remember_choices; echo "$DEVICE|$TENSORFLOW|$GPU_OPERATIONS"'
CPU = "cpu|tensorflow-cpu==2.18.1|\n"
GPU = "gpu|tensorflow[and-cuda]==2.18.1|NCCL\n"
GPU_WITHOUT_NCCL = "gpu|tensorflow[and-cuda]==2.18.1|\n"


def add_gpu(machine: Machine) -> None:
    machine.add_tool("nvidia-smi", 'echo "GPU 0: NVIDIA A100-SXM4-40GB (UUID: GPU-5a)"')


def add_cuda(machine: Machine, release: str) -> None:
    machine.add_tool("nvcc", f'echo "Cuda compilation tools, release {release}, V{release}.88"')


def chosen(machine: Machine, **environ: str) -> str:
    """Device, TensorFlow and operations; the driver and the CUDA of this machine are out of sight."""
    return machine.source(f"NVIDIA_DRIVER=/none CUDA_DIRECTORY=/none; {CHOOSE}", **environ).stdout


def test_a_machine_without_a_gpu_gets_the_build_for_cpus(machine: Machine) -> None:
    machine.add_tool("nvidia-smi", "echo 'NVIDIA-SMI has failed'; exit 9")
    add_cuda(machine, "12.5")
    assert chosen(machine) == CPU


def test_a_gpu_is_noticed_by_nvidia_smi_and_by_its_driver(machine: Machine) -> None:
    add_cuda(machine, "12.5")
    (machine.clone / "driver" / "0000:3b:00.0").mkdir(parents=True)
    assert machine.source(f"NVIDIA_DRIVER=driver; {CHOOSE}").stdout == GPU
    (machine.clone / ".venv/.hpcbal/device").unlink()
    add_gpu(machine)
    assert chosen(machine) == GPU


def test_a_variable_says_so_on_login_nodes(machine: Machine) -> None:
    add_cuda(machine, "12.5")
    assert chosen(machine, HPCBAL_DEVICE="gpu") == GPU


def test_nodes_without_gpu_or_cuda_keep_the_choice_of_others(machine: Machine) -> None:
    add_cuda(machine, "12.5")
    chosen(machine, HPCBAL_DEVICE="gpu")
    (machine.bin / "nvcc").unlink()
    assert chosen(machine) == GPU
    assert chosen(machine, HPCBAL_DEVICE="cpu") == CPU
    add_gpu(machine)
    assert chosen(machine) == CPU, "a choice that was made is kept"


def test_without_cuda_12_a_gpu_is_used_without_nccl_until_it_is_there(machine: Machine) -> None:
    add_gpu(machine)
    add_cuda(machine, "13.0")
    assert chosen(machine) == GPU_WITHOUT_NCCL
    add_cuda(machine, "12.2")
    assert chosen(machine) == GPU


def test_a_request_for_gpus_names_what_is_missing(machine: Machine) -> None:
    add_cuda(machine, "13.0")
    text = f"CUDA_DIRECTORY=/none; {CHOOSE}"
    done = machine.source(text, HPCBAL_DEVICE="gpu")
    assert done.returncode == 2
    assert (
        f"nvcc of CUDA 12 builds it, which was not found ({machine.bin}/nvcc is of CUDA 13.0)" in done.stderr
    )
    assert "HOROVOD_CUDA_HOME=DIR" in done.stderr
    assert chosen(machine, HPCBAL_DEVICE="gpu", HOROVOD_GPU_OPERATIONS="none") == GPU_WITHOUT_NCCL


@pytest.mark.parametrize(
    ("variable", "value"), [("HPCBAL_DEVICE", "GPU"), ("HOROVOD_GPU_OPERATIONS", "nccl")]
)
def test_other_values_are_refused(machine: Machine, variable: str, value: str) -> None:
    done = machine.source(CHOOSE, **{variable: value})
    assert done.returncode == 2
    assert f"{variable} is '{value}'; allowed are" in done.stderr


def test_another_tensorflow_is_removed_before_one_takes_its_place(machine: Machine) -> None:
    python = machine.clone / ".venv" / "bin" / "python"
    python.parent.mkdir(parents=True)
    machine.add_tool("python", 'echo "$*" >>calls').rename(python)
    machine.source("HPCBAL_DEVICE=cpu; choose_device; install_packages")
    machine.source("HPCBAL_DEVICE=gpu; choose_device; install_packages", HOROVOD_GPU_OPERATIONS="none")
    calls = (machine.clone / "calls").read_text().splitlines()
    assert calls[0] == "-m pip uninstall --yes tensorflow"
    assert calls[1].endswith(" tensorflow-cpu==2.18.1")
    assert calls[2] == "-m pip uninstall --yes tensorflow-cpu"
    assert calls[3].endswith(" tensorflow[and-cuda]==2.18.1")


def test_horovod_is_built_with_the_nccl_that_tensorflow_brings(machine: Machine, tmp_path: Path) -> None:
    nccl = machine.clone / ".venv/lib/python3.11/site-packages/nvidia/nccl"
    for name in ("include/nccl.h", "lib/libnccl.so.2"):
        (nccl / name).parent.mkdir(parents=True, exist_ok=True)
        (nccl / name).touch()
    cuda = tmp_path / "cuda" / "bin"
    cuda.mkdir(parents=True)
    add_cuda(machine, "12.5")
    (machine.bin / "nvcc").rename(cuda / "nvcc")
    machine.add_tool("make", ":")
    build = (
        "install_built() { env; ls -L $HOROVOD_NCCL_LIB/libnccl.so $HOROVOD_NCCL_INCLUDE/nccl.h; };"
        " cache_folder() { :; }; PYTHON_VERSION=3.11.2; choose_device; install_horovod"
    )
    done = machine.source(build, HPCBAL_DEVICE="gpu", HOROVOD_CUDA_HOME=str(cuda.parent))
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert {"HOROVOD_GPU_OPERATIONS=NCCL", "HOROVOD_NCCL_LINK=SHARED"} <= set(lines)
    assert f"HOROVOD_CUDA_HOME={cuda.parent}" in lines
    assert r"-Wl,-rpath,\$ORIGIN/../../nvidia/nccl/lib" in done.stdout
    done = machine.source(build.replace("ls -L", "true"), HPCBAL_DEVICE="cpu")
    assert "HOROVOD_GPU_OPERATIONS" not in done.stdout
    assert "HOROVOD_NCCL" not in done.stdout


def test_cuda_is_found_behind_a_link_to_its_compiler(machine: Machine, tmp_path: Path) -> None:
    cuda = tmp_path / "cuda-12.5" / "bin"
    cuda.mkdir(parents=True)
    answers = f'[[ $1 == --version ]] && echo "release 12.5, V12.5.82" || echo "#$ TOP={cuda}/.." >&2'
    machine.add_tool("nvcc", answers).rename(cuda / "nvcc")
    (machine.bin / "nvcc").symlink_to(cuda / "nvcc")
    assert machine.source('find_cuda; echo "$CUDA_TOP"').stdout == f"{cuda.parent}\n"


OPEN_MPI = "echo mca:pml:ucx:version:1; echo mca:mtl:ofi:version:1; echo option:pmix"


@pytest.mark.parametrize(
    ("info", "srun", "kind", "meaning"),
    [
        (OPEN_MPI, None, "site", "'srun --mpi=pmix' starts it where 'srun --mpi=list' shows pmix"),
        (OPEN_MPI, "echo none; echo pmix_v4 pmix", "site", "which the job scripts use, starts it here"),
        (OPEN_MPI, "echo none; echo pmi2", "site", "no PMIx ('srun --mpi=list'): set LAUNCHER=mpirun"),
        ("echo mca:pml:ob1:v", None, "site", "It has no PMIx"),
        ("exit 1", None, "site", "It is not Open MPI"),
        (OPEN_MPI, None, "site", "uses the site's fabric by ofi ucx."),
        (OPEN_MPI, None, "wheel", "for other fabrics, such as Slingshot, load the site's MPI"),
        ("echo mca:pml:ob1:v", None, "wheel", "it only has TCP"),
    ],
)
def test_the_choice_of_mpi_is_explained_for_srun_and_the_fabric(
    machine: Machine, info: str, srun: str | None, kind: str, meaning: str
) -> None:
    machine.add_tool("ompi_info", info)
    if srun is not None:
        machine.add_tool("srun", srun)
    done = machine.source(
        f"NVIDIA_DRIVER=/none; choose_device; MPI_BIN={machine.bin} MPI_KIND={kind} MPI_ID=it; explain_choice"
    )
    *frameworks, of_mpi = done.stderr.splitlines()
    assert len(frameworks) == 3
    assert "for CPUs (this machine has no NVIDIA GPU); for GPU nodes: HPCBAL_DEVICE=gpu" in frameworks[0]
    assert meaning in of_mpi
