"""Every environment variable that hpcbal reads or sets for its ranks, in one table."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import Any

from hpcbal.errors import InputError

DRIVERS_ORDER = "PCI_BUS_ID"
"""Value of `CUDA_DEVICE_ORDER` that makes CUDA number GPUs as the driver does."""

_TENSORFLOW_DEFAULTS: Mapping[str, str] = {
    "TF_CPP_MIN_LOG_LEVEL": "2",  # 0 shows TensorFlow's own log
    "CUDA_DEVICE_ORDER": DRIVERS_ORDER,  # otherwise the fastest GPU is number 0
}
"""Settings of TensorFlow and Keras, which read them when they are imported; a user's own setting wins."""

_KERAS_SETTINGS: Mapping[str, str] = {"KERAS_BACKEND": "tensorflow", "TF_USE_LEGACY_KERAS": "0"}
"""The same, where no other setting works: the user's, and that of keras.json, are overridden."""


def tensorflow_settings() -> dict[str, str]:
    """Return what `os.environ` must hold before TensorFlow or Keras is imported."""
    return {**_TENSORFLOW_DEFAULTS, **os.environ, **_KERAS_SETTINGS}


def compiler_settings(directory: str) -> dict[str, str]:
    """Return what `os.environ` must hold before torch.compile makes code, which it keeps in `directory`."""
    return {
        "TORCHINDUCTOR_CACHE_DIR": directory,
        "TRITON_CACHE_DIR": os.path.join(directory, "triton"),
        "TORCHINDUCTOR_COMPILE_THREADS": "1",  # otherwise each rank starts a process for each core
        **os.environ,
    }


MLFLOW_SETTINGS: Mapping[str, str] = {
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "DO_NOT_TRACK": "true",
    "MLFLOW_ALLOW_FILE_STORE": "true",  # since version 3.17 it writes files only if it is asked to
}
"""Variables that must be set before MLflow is imported."""
WANDB_SETTINGS: Mapping[str, str] = {
    "WANDB_MODE": "offline",
    "WANDB_ERROR_REPORTING": "false",
    "WANDB_SILENT": "true",
}
"""Variables that must be set before wandb is imported."""

# name -> what it does here. A test checks that the package uses no other variable.
VARIABLES: Mapping[str, str] = {
    # Our own: a flag overrides them, and they override the configuration.
    "HPCBAL_OUTPUT": "output directory, like --output",
    "HPCBAL_LOG_LEVEL": "level of the ranks' log files, like --log-level",
    "HPCBAL_CALIBRATION": "file in which finished runs note what they took; /dev/null: none",
    "HPCBAL_LAUNCH_DIR": "set by `hpcbal run` for its ranks: the directory in which they exchange messages",
    "HPCBAL_LAUNCHED": "set by `hpcbal run` for the ranks that it starts with mpirun itself",
    "HPCBAL_STARTER": "set by `hpcbal.run` in Python: the process whose end stops the run",
    "HPCBAL_CHAIN": "set by job scripts that submit themselves again: the first job of these",
    "HPCBAL_END_FILE": "set by job scripts: the file in which rank 0 notes how the run has ended",
    "HPCBAL_SITE": "the site file of `hpcbal submit`, instead of ~/.config/hpcbal/site.yaml",
    "HPCBAL_TASK": "set for job scripts: which task of an array, where the system has no arrays",
    "HPCBAL_END_TIME": "set by job scripts: when the job ends, unix seconds",
    "PYTHONUTF8": "hpcbal uses UTF-8 in any locale, and sets it to 1 where Python would not",
    "PYTHONPATH": "more folders with modules: Python's own and libraries come first",
    # Which launcher started this process, and how many ranks it started.
    "OMPI_COMM_WORLD_RANK": "rank, set by Open MPI's mpirun",
    "OMPI_COMM_WORLD_SIZE": "number of ranks, set by Open MPI's mpirun",
    "OMPI_COMM_WORLD_LOCAL_RANK": "index of a rank among those of its node, set by Open MPI's mpirun",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "number of ranks on the node, set by Open MPI's mpirun",
    "PMIX_RANK": "rank, set by a launcher that speaks PMIx",
    "PMIX_SIZE": "number of ranks, set by a launcher that speaks PMIx",
    "PMIX_LOCAL_RANK": "index of a rank among those of its node, set by a launcher that speaks PMIx",
    "PMIX_LOCAL_SIZE": "number of ranks on the node, set by a launcher that speaks PMIx",
    "MV2_COMM_WORLD_RANK": "rank, set by MVAPICH2's launcher",
    "MV2_COMM_WORLD_SIZE": "number of ranks, set by MVAPICH2's launcher",
    "MV2_COMM_WORLD_LOCAL_RANK": "index of a rank among those of its node, set by MVAPICH2's launcher",
    "MV2_COMM_WORLD_LOCAL_SIZE": "number of ranks on the node, set by MVAPICH2's launcher",
    "PMI_RANK": "rank, set by a launcher that speaks PMI (MPICH, Intel MPI)",
    "PMI_SIZE": "number of ranks, set by a launcher that speaks PMI (MPICH, Intel MPI)",
    "PMI_LOCAL_RANK": "index of a rank among those of its node, set by PALS and some PMIs",
    "PMI_LOCAL_SIZE": "number of ranks on the node, set by a launcher that speaks PMI (MPICH, Intel MPI)",
    "JSM_NAMESPACE_RANK": "rank, set by jsrun (LSF)",
    "JSM_NAMESPACE_SIZE": "number of ranks, set by jsrun (LSF)",
    "JSM_NAMESPACE_LOCAL_RANK": "index of a rank among those of its node, set by jsrun (LSF)",
    "JSM_NAMESPACE_LOCAL_SIZE": "number of ranks on the node, set by jsrun (LSF)",
    "MPI_LOCALRANKID": "index of a rank among those of its node, set by MPICH and Intel MPI",
    "MPI_LOCALNRANKS": "number of ranks on the node, set by MPICH and Intel MPI",
    "OMPI_VERSION": "version of Open MPI's mpirun, since 5; the doctor compares it with that of mpi4py",
    "APPTAINER_CONTAINER": "the container of this process, for `hpcbal doctor`",
    "SINGULARITY_CONTAINER": "the same, of Apptainer's predecessor",
    "PMIX_NAMESPACE": "name of the job in PMIx; srun's begin with slurm.",
    "PALS_RANKID": "rank, set by PALS (PBS on Cray)",
    "PALS_SIZE": "number of ranks, set by PALS (PBS on Cray)",
    "PALS_LOCAL_RANKID": "index of a rank among those of its node, set by PALS",
    "PALS_LOCAL_SIZE": "number of ranks on the node, set by PALS",
    "FLUX_TASK_RANK": "rank, set by Flux",
    "FLUX_TASK_LOCAL_ID": "index of a rank among those of its node, set by Flux",
    "FLUX_JOB_SIZE": "number of ranks, set by Flux",
    "FLUX_JOB_NNODES": "number of nodes, set by Flux",
    "SLURM_PROCID": "rank, set by srun",
    "SLURM_LOCALID": "index of a rank among those of its node, set by srun",
    "SLURM_NODEID": "index of a rank's node, set by srun",
    "SLURM_STEP_ID": "set only in a step that srun started",
    "SLURM_STEP_NUM_TASKS": "number of ranks of the step, set by srun",
    "SLURM_NTASKS": "number of ranks, set by older versions of srun, and in batch scripts",
    "SLURM_JOB_NUM_NODES": "nodes of the job, for `hpcbal launcher`",
    "SLURM_HET_SIZE": "number of components of a heterogeneous job; those of a component end in _HET_GROUP_n",
    "SLURM_STEP_NUM_NODES": "nodes of the step, set by srun",
    "SLURM_STEP_TASKS_PER_NODE": "ranks of each node of the step, such as 2(x3),1, set by srun",
    "SLURM_TASKS_PER_NODE": "tasks of each node of the job, in the same form",
    "SLURM_JOB_ID": "the job, whose end `scontrol` names if SLURM_JOB_END_TIME is not set",
    "SLURM_ARRAY_JOB_ID": "the job array of Slurm that the job is a task of",
    "SLURM_ARRAY_TASK_ID": "index in a job array of Slurm",
    "PBS_JOBID": "the job, whose end `qstat` names",
    "PBS_WALLTIME": "seconds that the job may take; used if `qstat` does not answer",
    "PBS_ARRAY_INDEX": "index in a job array of PBS",
    "PBS_ARRAYID": "the same, of Torque",
    "LSB_JOBID": "the job, whose end `bjobs` names",
    "LSB_JOBINDEX": "index in a job array of LSF; 0 outside of one",
    "LSB_MCPU_HOSTS": "hosts of an LSF job, each with its slots",
    "FLUX_JOB_ID": "the job, whose end `flux jobs` names",
    "FLUX_JOB_CC": "index in a set of Flux jobs that were submitted with --cc",
    "SLURM_NTASKS_PER_NODE": "ranks per node that the job has requested, for `hpcbal launcher`",
    "SLURM_CPUS_PER_TASK": "cores per rank that the job has requested, for `hpcbal launcher`",
    "SLURM_GPUS_PER_NODE": "GPUs per node that the job has requested, for `hpcbal launcher`",
    "SLURM_CLUSTER_NAME": "name of the cluster: predictions learn from its own earlier runs",
    "SLURM_CONF": "file with that name on a login node; /etc/slurm/slurm.conf unless set",
    "SLURM_RESTART_COUNT": "how often Slurm has started the job again, for `hpcbal launcher --ended`",
    "SLURM_JOB_END_TIME": "when the job ends, unix seconds; used unless the configuration gives a walltime",
    "SLURM_BITSTR_LEN": "set to 0 for Slurm's commands, which then print all numbers of an array",
    "SLURM_TIME_FORMAT": "set to %s for Slurm's commands, which then print times as unix seconds",
    "LOADEDMODULES": "modules that are loaded, for the first site file",
    "LC_ALL": "set to C for commands of the batch system, whose output is read",
    "WORLD_SIZE": "number of processes, set by torchrun: `hpcbal.samplers` asks for torch.distributed then",
    # Node-local disk.
    "SLURM_TMPDIR": "directory on node-local disk, for samples that do not fit into memory",
    "TMPDIR": "the same, where SLURM_TMPDIR is not set; also for temporary files",
    # Where a user's programs keep what should outlive a run.
    "XDG_STATE_HOME": "the file of HPCBAL_CALIBRATION is below it; ~/.local/state unless set",
    # Where HDF5 looks for the files of virtual and external datasets.
    "HDF5_VDS_PREFIX": "directories of the files of virtual datasets",
    "HDF5_EXTFILE_PREFIX": "directory of the raw files of external datasets",
    # Threads; the user's setting overrides a rank's share of the cores.
    "OMP_NUM_THREADS": "threads of a rank",
    "TF_NUM_INTRAOP_THREADS": "threads inside one TensorFlow operation",
    "TF_NUM_INTEROP_THREADS": "TensorFlow operations that run in parallel",
    # Set for the ranks, unless the user has set them.
    "TORCHINDUCTOR_CACHE_DIR": "in the output directory: what torch.compile has made for DNNs with compile",
    "TRITON_CACHE_DIR": "the same for GPUs",
    "TORCHINDUCTOR_COMPILE_THREADS": "1: ranks start no processes that compile",
    "TF_CPP_MIN_LOG_LEVEL": "how much TensorFlow logs; 2 (errors) unless set",
    "KERAS_BACKEND": "always tensorflow, also if the user's keras.json says otherwise",
    "TF_USE_LEGACY_KERAS": "always 0: models are those of Keras 3",
    "HOME": "of the user's account, or /, unless set: Open MPI does not start without it",
    "CUDA_DEVICE_ORDER": "PCI_BUS_ID unless set: numbers GPUs as nvidia-smi does",
    "HOROVOD_DYNAMIC_PROCESS_SETS": "always 1: trainer groups are formed and dissolved during a run",
    "OMPI_MCA_osc": "^ucx for ranks that hpcbal starts: Open MPI 5's wheel prints errors otherwise",
    "OMPI_MCA_btl": "^ofi for ranks that hpcbal starts: btl/ofi sleeps a second if it finds no network",
    "UCX_DEBUG_SIGNO": "0 unless set: UCX would take HUP, which asks a rank to stop",
    "PRTE_MCA_prte_tmpdir_base": "for ranks that hpcbal starts: directory for mpirun's files, one per start",
    "OMPI_MCA_orte_tmpdir_base": "the same for Open MPI 4",
    "OMPI_MCA_rmaps_base_oversubscribe": "1 for ranks that hpcbal starts on one machine",
    "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe for ranks that hpcbal starts on one machine",
    "OMPI_MCA_mpi_yield_when_idle": "1 when hpcbal starts more ranks than there are cores",
    "OMPI_MCA_hwloc_base_binding_policy": "none when hpcbal starts more ranks than there are cores",
    "PRTE_MCA_hwloc_default_binding_policy": "none when hpcbal starts more ranks than there are cores",
    "OMPI_ALLOW_RUN_AS_ROOT": "1 for ranks that root starts with hpcbal, as in a container",
    "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1 for ranks that root starts with hpcbal, as in a container",
    "CXX": "the C++ compiler of torch.compile, for DNNs with compile: true; g++ unless set",
    # Accelerators.
    "CUDA_VISIBLE_DEVICES": "NVIDIA GPUs that may be used; never changed",
    "ROCR_VISIBLE_DEVICES": "AMD GPUs that may be used; never changed",
    "HIP_VISIBLE_DEVICES": "those that HIP shows of what ROCR_VISIBLE_DEVICES leaves; never changed",
    "ZE_AFFINITY_MASK": "Intel GPUs, or tiles of them such as 0.1, that may be used; never changed",
    "SLURM_STEP_GPUS": "GPUs that Slurm gave the step: a trainer that sees none is an error",
    "SLURM_JOB_GPUS": "GPUs that Slurm gave the job: a trainer that sees none is an error",
    "SLURM_GPUS_ON_NODE": "number of GPUs that Slurm gave on this node: a trainer that sees none is an error",
}

LOG_LEVELS = ("DEBUG", "INFO", "WARNING", "ERROR")


def read(name: str, environ: Mapping[str, str] | None = None) -> str | None:
    """Value of a variable in the table; None if it is unset or empty.

    Raises:
        KeyError: if the table lacks the name.
    """
    if name not in VARIABLES:
        raise KeyError(f"{name} is not in hpcbal.env.VARIABLES")
    return (os.environ if environ is None else environ).get(name) or None


_IN_TEXT = re.compile(r"\$(?:(?P<dollar>\$)|\{(?P<braced>\w+)\}|(?P<plain>[A-Za-z_]\w*))")


def expanded(args: Any, key: str) -> Any:
    """Replace $NAME and ${NAME} in the text of arguments by the user's environment variables, and $$ by $.

    A `~/` that begins a text becomes the home directory.

    Args:
        args: a value of the configuration; lists and mappings are searched for text.
        key: the value's dotted key, for messages.

    Raises:
        InputError: if a variable is not set.
    """
    if isinstance(args, Mapping):
        return {name: expanded(value, f"{key}.{name}") for name, value in args.items()}
    if isinstance(args, list):
        return [expanded(value, f"{key}.{index}") for index, value in enumerate(args)]
    if not isinstance(args, str):
        return args

    def value_of(found: re.Match[str]) -> str:
        if found["dollar"]:
            return "$"
        name = found["braced"] or found["plain"]
        if name not in os.environ:
            raise InputError(
                f"{key}: got {args!r}, but the environment variable {name} is not set here; set it, or write "
                "the value out; a plain $ is written $$"
            )
        return os.environ[name]

    expanded_text = _IN_TEXT.sub(value_of, args)
    return os.path.expanduser(expanded_text) if args.startswith("~/") else expanded_text
