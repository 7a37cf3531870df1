#!/usr/bin/env bash
# A throw-away Slurm of several virtual nodes on one machine, in a network namespace of its own.
#
#   slurm.sh up DIR [NODES] [CPUS] [GPUS]   start it: NODES (2) nodes n1.. with CPUS (8) claimed cores, GPUS (0) fake GPUs
#   slurm.sh exec DIR COMMAND...            run a command where sbatch, srun, squeue ... reach it
#   slurm.sh kill-node DIR NODE             a power cut: SIGKILL to all processes of a node
#   slurm.sh start-node DIR NODE            switch the node on again
#   slurm.sh down DIR                       cancel all jobs, end all processes; then `rm -rf DIR` removes all traces
#
# Needs: root (CAP_SYS_ADMIN, CAP_NET_ADMIN), `apt-get install --no-install-recommends slurm-wlm munge libpmix-dev`
# (libpmix-dev holds the libpmix.so that `srun --mpi=pmix` opens), no systemd, no ports outside of the namespace, so
# any number of clusters may run at once. DIR must be short: paths of Unix sockets end at 107 bytes.
set -u
self=$(readlink -f "$0")
command=${1:?up, exec, kill-node, start-node or down}
D=$(readlink -m "${2:?DIR}")
shift 2
PORT=26817
export SLURM_CONF=$D/slurm.conf TMPDIR=$D/tmp OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1

fail() {
  echo "slurm.sh: $*" >&2
  exit 1
}

write_configuration() { # NODES CPUS GPUS
  local host i
  host=$(hostname -s)
  {
    printf '%s\n' "ClusterName=throwaway" "SlurmctldHost=$host(127.0.0.1)" "SlurmctldPort=$PORT" \
      "SlurmUser=root" "SlurmdUser=root" \
      "AuthInfo=socket=$D/run/munge.sock,cred_expire=${CRED_EXPIRE:-5}" "StateSaveLocation=$D/ctld" "SlurmdSpoolDir=$D/spool.%n" \
      "TmpFS=$D/tmp.%n" "SlurmctldPidFile=$D/run/slurmctld.pid" "SlurmdPidFile=$D/run/slurmd.%n.pid" \
      "SlurmctldLogFile=$D/log/slurmctld.log" "SlurmdLogFile=$D/log/slurmd.%n.log" \
      "ProctrackType=proctrack/linuxproc" "TaskPlugin=${TASK_PLUGIN:-task/none}" "JobAcctGatherType=jobacct_gather/none" \
      "AccountingStorageType=accounting_storage/none" "JobCompType=jobcomp/filetxt" \
      "JobCompLoc=$D/log/jobcomp.txt" "SelectType=select/cons_tres" "SelectTypeParameters=CR_Core" "GresTypes=gpu" \
      "ReturnToService=2" "SlurmdParameters=config_overrides" \
      "SchedulerParameters=batch_sched_delay=0,sched_interval=2,bf_interval=2" "SlurmdTimeout=${SLURMD_TIMEOUT:-60}" "MessageTimeout=30" \
      "KillWait=${KILL_WAIT:-5}" "PartitionName=debug Nodes=n[1-$1] Default=YES MaxTime=${MAX_TIME:-INFINITE} State=UP"
    for i in $(seq "$1"); do
      printf 'NodeName=n%s NodeHostname=n%s NodeAddr=127.0.0.1 Port=%s CPUs=%s Sockets=1 CoresPerSocket=%s RealMemory=4000%s\n' \
        "$i" "$i" $((PORT + i)) "$2" "$2" "$( (($3)) && echo " Gres=gpu:$3")"
    done
  } >"$D/slurm.conf"
  : >"$D/gres.conf"
  if (($3)); then
    for i in $(seq 0 $(($3 - 1))); do mknod "$D/gpu$i" c 1 3 || fail "mknod"; done # twins of /dev/null
    if (($3 == 1)); then echo "Name=gpu File=$D/gpu0"; else echo "Name=gpu File=$D/gpu[0-$(($3 - 1))]"; fi >"$D/gres.conf"
  fi
  echo "127.0.0.1 localhost $host $(seq -s' ' -f n%g "$1")" >"$D/hosts"
}

start_node() { # NODE; own names, /dev/shm and IPC, as a machine has
  unshare --uts --mount --ipc --propagation private bash -c \
    "hostname $1 && mount -t tmpfs -o mode=1777 tmpfs /dev/shm && mount --bind '$D/hosts' /etc/hosts && exec slurmd -N $1"
}

wait_idle() { # NODES
  for _ in $(seq 100); do
    [[ $(timeout 5 sinfo -hNo %T 2>/dev/null | grep -c ^idle) == "$1" ]] && return
    sleep 0.1
  done
  tail -n 20 "$D"/log/slurm*.log >&2
  return 1
}

namespace() { readlink "/proc/${1:-self}/ns/net" 2>/dev/null; }

inside() { nsenter --net="/proc/$(<"$D/run/munged.pid")/ns/net" -- "$@"; }

processes_of() { # NODE: all that have its host name
  local p uts
  uts=$(readlink "/proc/$(<"$D/run/slurmd.$1.pid")/ns/uts") || return
  for p in /proc/[0-9]*; do [[ $(readlink "$p/ns/uts" 2>/dev/null) == "$uts" ]] && echo "${p#/proc/}"; done
}

case $command in
  up)
    [[ -e $D/slurm.conf ]] && fail "$D is in use"
    ((${#D} < 80)) || fail "DIR is too long for Unix sockets"
    mkdir -p "$D"/{ctld,log,run,tmp} && chmod 755 "$D" && chmod 1777 "$D/tmp" || exit 1
    (umask 077 && head -c128 /dev/urandom >"$D/munge.key")
    nodes=${1:-2}
    write_configuration "$nodes" "${2:-8}" "${3:-0}"
    for i in $(seq "$nodes"); do mkdir -p "$D/spool.n$i" "$D/tmp.n$i"; done
    exec unshare --net "$self" _up "$D" "$nodes"
    ;;
  _up)
    # A veth pair without a way out: with only 127.0.0.1, getaddrinfo (AI_ADDRCONFIG) finds no address, and Open MPI 5's
    # remote daemon exits with 213.
    { ip link set lo up && ip link add sl0 type veth peer name sl1 &&
      sysctl -qw net.ipv6.conf.sl{0,1}.disable_ipv6=1 && ip addr add 10.99.0.1/32 dev sl0 && ip link set sl0 up &&
      ip link set sl1 up; } || fail "network"
    munged --key-file="$D/munge.key" --socket="$D/run/munge.sock" --pid-file="$D/run/munged.pid" \
      --log-file="$D/log/munged.log" --seed-file="$D/run/seed" || fail "munged"
    slurmctld || fail "slurmctld"
    for i in $(seq "$1"); do start_node "n$i" || fail "slurmd of n$i"; done
    wait_idle "$1"
    ;;
  exec) exec nsenter --net="/proc/$(<"$D/run/munged.pid")/ns/net" -- "$@" ;;
  kill-node)
    for p in $(processes_of "$1"); do kill -KILL "$p" 2>/dev/null; done
    ;;
  start-node) exec nsenter --net="/proc/$(<"$D/run/munged.pid")/ns/net" -- "$self" _node "$D" "$1" ;;
  _node) start_node "$1" ;;
  down)
    m=$(cat "$D/run/munged.pid" 2>/dev/null) || exit 0
    ours=$(namespace "$m")
    [[ -n $ours && $ours != "$(namespace)" ]] || exit 0 # already down, or not in a namespace of its own
    jobs=$(inside timeout 10 squeue -ho %A | sort -u)
    # shellcheck disable=SC2086
    [[ -n $jobs ]] && inside timeout 10 scancel -f --quiet $jobs
    for _ in $(seq 40); do
      [[ -z $(inside timeout 10 squeue -h 2>/dev/null) ]] && break
      sleep 0.25
    done
    left() { for p in /proc/[0-9]*; do [[ $(namespace "${p#/proc/}") == "$ours" ]] && echo "${p#/proc/}"; done; }
    for signal in TERM KILL; do
      for p in $(left); do kill -$signal "$p" 2>/dev/null; done
      for _ in $(seq 30); do
        [[ -z $(left) ]] && exit 0
        sleep 0.1
      done
    done
    exit 1
    ;;
  *) fail "unknown command $command" ;;
esac
