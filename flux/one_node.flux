#!/usr/bin/env bash
# flux: --job-name=hpcbal
# flux: --nodes=1
# flux: --exclusive
# flux: --time-limit=240m
# flux: "--output=hpcbal-{{id}}.log"
#
# Untested on Flux: written from the manual of flux-core, and tested only with stand-ins for its commands.
#
# Train one ensemble. Submit it from any directory; relative paths start there:
#
#   flux batch flux/one_node.flux CONFIG [hpcbal run ARGUMENT...]
#   flux batch flux/one_node.flux profile CONFIG     # only measure the training rates, for `hpcbal plan`
#   flux batch flux/one_node.flux evaluate DIR [hpcbal evaluate ARGUMENT...]
#
# `hpcbal submit CONFIG` writes such a script for a configuration and a site; this one is for those who edit it.
# In arguments, %j stands for the identifier of the job. Flux hides from a script where it lies: outside of the directory
# of the clone, set HPCBAL_VENV. Bank and queue: flux batch --bank=MY_BANK --queue=MY_QUEUE ...
#
# Ranks per node (below): slots.per_node trainers + slots.preprocessors_per_node + 1. --exclusive: the job has whole
# nodes, with all their cores and GPUs. This script signals itself before the end of the job, and submits itself
# again, because users may not requeue.

is_signalled=0
read_numbers() { # of the job, and where it was submitted
  job=$FLUX_ENCLOSING_ID submit_dir=$PWD task=$HPCBAL_TASK
  id=$job
  lead=300
  [[ -n $HPCBAL_CHAIN ]] || is_first=1 # Flux starts no job again
}

read_words() { given=("$@") words=("${@//%j/$job}"); }

show_job() { timeout 30 flux --parent jobs --json "$id"; }

folder_of_script() { :; }

set_launch() { # hpcbal assigns the cores and the GPUs itself
  launch=("$LAUNCHER" run --nodes="$NUM_NODES" --tasks-per-node="$RANKS_PER_NODE" --exclusive --setopt=cpu-affinity=off)
  launch+=(--setopt=gpu-affinity=off)
}

watch_end() { # nobody signals this shell before the limit: it does so itself, and when `hpcbal cancel` asks for it
  local now pipe stop_at=$((left > lead + 60 ? end - lead : 0))
  exec {pipe}<> <(:)
  while :; do
    read -rt 5 -u "$pipe" || true # a pause without another process
    printf -v now '%(%s)T' -1
    if is_cancelled || ((stop_at && now >= stop_at)); then break; fi
  done
  kill -USR2 $$
}

note_next() { # the job that continues this one, by what the command that submits it has printed
  [[ -n $output ]] || return 0
  "${CONTAINER[@]}" hpcbal launcher --continues "$id" --system "$1" --log "${log-}" --output "$output" <<<"$2" ||
    echo "the job is submitted again, but its number is not noted ($1: $2): 'hpcbal status' and 'hpcbal cancel'" \
      "do not know it" >&2
}

come_back() {
  local next
  export HPCBAL_CHAIN=$chain HPCBAL_TASK=$task
  next=$(flux --parent batch "$0" "${given[@]}") && note_next flux "$next"
}

set -eo pipefail # without -u: module functions and activation scripts use variables that are not set
doing='the beginning of its script' # in front of the run; empty: from then on the run says how it ends
leave() {
  doing=''
  exit "$1"
}
failed() { # a code of another program must not look like one of a run, such as 75, which starts a job again
  [[ -n $doing ]] || return 0
  echo "the job ends here, because $doing has ended with $1 (last command: $2)" >&2
  leave 2
}
trap 'failed $? "$BASH_COMMAND"' EXIT
asked=0 deaf=0 child='' # a USR2 before there are ranks is kept
passed=USR2             # the signal that the launcher passes on to the ranks
trap stop USR2
is_first=0              # whether the batch system says that it has not started this job before
is_cancelled() { [[ -n $output && -e $output/batch.cancel ]]; }
has_ranks() { tac "$HPCBAL_END_FILE" | sed '/^start$/q' | grep -qvx start; } # which catch signals
last_line() { # of this form, on standard input: a container may print lines of its own
  sed -nE "s/^($1)\$/\1/p" | tail -n 1
}
stop() { # runs whenever a signal comes, even during itself: bash must not wait for a program here, or it may end with 127
  asked=1
  [[ -n $child ]] || return 0
  if ((deaf)) && ! is_cancelled; then
    deaf=0
    echo "signal ignored" >&2
    return 0 # not the status of what was interrupted
  fi
  ask_ranks &
}
ask_ranks() { # to stop, through the launcher, which dies of a signal that comes before it has started them
  for ((i = 0; i < 600; i++)); do
    if has_ranks || ! kill -0 "$child" 2>/dev/null; then break; fi
    sleep 0.1
  done
  kill -"$passed" "$child" 2>/dev/null || true
}

read_numbers
# ---- site: edit ------------------------------------------------------------------------------------------------
MODULES=()      # the same as for the set-up, for example: (gcc/13 python/3.11 openmpi/5 cuda/12)
LAUNCHER=flux   # flux run
CONTAINER=()    # instead of an environment, for example: (apptainer exec --nv --bind /scratch /shared/hpcbal.sif)
OPTIONS=()      # more options of the launcher, for example: (--setopt=pmi=pmix)
MAX_RESTARTS=50 # stop to start a job again that never finishes
NUM_NODES=1
RANKS_PER_NODE=6
# ----------------------------------------------------------------------------------------------------------------

read_words "$@"
output=''
case ${words[0]} in
profile | evaluate) ;;
'')
  echo "usage: flux batch flux/one_node.flux [profile | evaluate] CONFIG-OR-DIR [ARGUMENT...]" >&2
  leave 2
  ;;
*) words=(run "${words[@]}") ;;
esac

find_venv() { # prints HPCBAL_VENV, or a .venv with hpcbal in these folders or above; nothing if hpcbal is on PATH
  local folder
  if [[ -n $HPCBAL_VENV ]]; then
    [[ -x $HPCBAL_VENV/bin/hpcbal ]] && printf '%s' "$HPCBAL_VENV" && return
    echo "HPCBAL_VENV is $HPCBAL_VENV, which has no bin/hpcbal; set it (or venv in the site file) to what scripts/setup.sh has made" >&2
    exit 2
  fi
  for folder in "$@"; do
    while [[ $folder == /* ]]; do
      [[ -x $folder/.venv/bin/hpcbal ]] && printf '%s' "$folder/.venv" && return
      folder=${folder%/*}
    done
  done
  type -P hpcbal >/dev/null && return
  echo "no .venv with hpcbal in $1 or above it; set HPCBAL_VENV to the one that scripts/setup.sh has made" >&2
  exit 2
}

# ---- the environment ------------------------------------------------------------------------------------------
if ((${#MODULES[@]})); then
  doing='module load'
  type module >/dev/null 2>&1 || source /etc/profile || true # a batch shell may lack the function
  module load "${MODULES[@]}"
fi
if ((${#CONTAINER[@]} == 0)); then
  doing='the activation of the environment'
  VENV=$(find_venv "$PWD" "$submit_dir" "$(folder_of_script)") || leave 2
  if [[ -n $VENV ]]; then
    # shellcheck disable=SC1091  # made by scripts/setup.sh
    source "$VENV/bin/activate"
  fi
fi

# The story of all starts of this job. Rank 0 writes into it when all ranks catch signals, whether this start gets further
# than those before, and how the run has ended. It is where all nodes see it.
chain=${HPCBAL_CHAIN:-$job} # the first job, if this one was submitted to continue it
folder=${output:-$PWD}
[[ $folder == /* ]] || folder=$PWD/$folder
export HPCBAL_END_FILE=$folder/.hpcbal-$chain.end
mkdir -p "$folder" 2>/dev/null || true
((!is_first)) || rm -f "$HPCBAL_END_FILE" # of another job: numbers recur
doing="'hpcbal launcher --starting'"
# A batch system that has lost a node starts the job again without asking this script. hpcbal reads from the batch system's
# answer when the job ends: in seconds of the Unix epoch; 0: not known.
unset HPCBAL_END_TIME # of another job
status=0
end=$({ show_job 2>/dev/null || true; } | "${CONTAINER[@]}" hpcbal launcher --starting --system flux \
  --most-restarts "$MAX_RESTARTS" ${output:+--output "$output" --mark batch.cancel --job "$id"} | last_line '[0-9]+') || status=$?
end=${end:-0}
unset HPCBAL_CHAIN # a job that is submitted from here does not continue this one
if ((status)); then
  rm -f "$HPCBAL_END_FILE"
  ((status != 75)) || leave 75
  echo "the container, environment and modules of this script decide what is started" >&2
  failed "$status" "${CONTAINER[*]} hpcbal"
fi
if ! echo start >>"$HPCBAL_END_FILE"; then
  HPCBAL_END_FILE=$(mktemp)
  [[ -n ${SLURM_JOB_ID:-} ]] || MAX_RESTARTS=0 # only Slurm itself counts the starts
  echo start >"$HPCBAL_END_FILE"
fi

# A signal that comes at once would stop every start before it has trained. The run knows the end of the job, too.
doing='the question when it ends'
((end == 0)) || export HPCBAL_END_TIME=$end
left=$((end - $(date +%s)))
if ((0 < left && left <= lead + 60)) && ! is_cancelled; then # Slurm may be a minute early
  ((asked)) || deaf=$is_signalled
  asked=0
  echo "the job ends in $left s, and is signalled $lead s before: ignoring this signal; the run stops by itself a" \
    "minute before the end. Give the job more time (--time-limit)" >&2
fi

doing="'hpcbal launcher'"
set_launch
launch+=("${OPTIONS[@]}")
doing=''

watch_end &
watch=$!

# Some minutes before the limit, this shell is signalled, and signals every rank through the launcher. A second USR2 has
# no effect on a rank.
"${launch[@]}" "${CONTAINER[@]}" hpcbal "${words[@]}" &
child=$!
((asked)) && stop
while :; do # a signal ends `wait` early, sometimes without its trap: the ranks are still writing their checkpoints
  asked=0
  status=0
  wait "$child" || status=$?
  ((asked)) || kill -0 "$child" 2>/dev/null || break
done
child='' # a signal from now on asks nobody
kill "$watch" 2>/dev/null || true

# What rank 0 has noted decides, not the launcher's code; hpcbal knows the rules. `again`: the same command continues from
# the checkpoints.
ended=$("${CONTAINER[@]}" hpcbal launcher --ended "$status" --most-restarts "$MAX_RESTARTS" ${output:+--output "$output" --mark batch.cancel} |
  last_line '[0-9]+ (again|end)') || ended=''
read -r status next <<<"${ended:-1 end}"
if [[ $next == again ]]; then
  if come_back; then exit "$status"; fi
  echo "the job could not be started again and ends here; submit it again to continue" >&2
fi
((status != 75)) || status=75
rm -f "$HPCBAL_END_FILE"
exit "$status"
