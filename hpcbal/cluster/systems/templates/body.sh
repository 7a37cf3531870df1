set -eo pipefail # without -u: module functions and activation scripts use variables that are not set
asked=0 deaf=0 child='' # a USR2 before there are ranks is kept
trap stop USR2
stop() { # ask all ranks to stop, through the launcher, which dies of a signal that comes before it has started them
  asked=1
  [[ -n $child ]] || return 0
  if ((deaf)); then
    deaf=0
    echo "signal ignored" >&2
    return 0 # not the status of what was interrupted
  fi
  for ((i = 0; i < 600; i++)); do
    if [[ -s $HPCBAL_END_FILE ]] || ! kill -0 "$child" 2>/dev/null; then break; fi
    sleep 0.1
  done
  kill -USR2 "$child" 2>/dev/null || true
}

read_numbers
@submitted@# ---- the command and the site ----------------------------------------------------------------------------------
@submitted@@tasks@
@submitted@MODULES=(@modules@)
@submitted@LAUNCHER=@launcher@
@submitted@CONTAINER=(@container@)
@submitted@OPTIONS=(@launcher_options@)
@submitted@MAX_RESTARTS=@max_restarts@
@submitted@HPCBAL_VENV=@venv@
@general@# ---- site: edit ------------------------------------------------------------------------------------------------
@general@MODULES=()      # the same as for the set-up, for example: (gcc/13 python/3.11 openmpi/5 cuda/12)
@general@LAUNCHER=@launcher@   # @launchers@
@general@CONTAINER=()    # instead of an environment, for example: (apptainer exec --nv --bind /scratch /shared/hpcbal.sif)
@general@OPTIONS=()      # more options of the launcher, for example: (@launcher_option@)
@general@MAX_RESTARTS=@max_restarts@ # stop to start a job again that never finishes
@numbers@
@resubmits@script=@script@
# ----------------------------------------------------------------------------------------------------------------
@general@
@general@read_words "$@"
@general@output=''
@general@case ${words[0]} in
@general@profile | evaluate) ;;
@general@'')
@general@  echo "usage: @usage@" >&2
@general@  exit 2
@general@  ;;
@general@*) words=(run "${words[@]}") ;;
@general@esac

find_venv() { # prints HPCBAL_VENV, or a .venv with hpcbal in these folders or above; nothing if hpcbal is on PATH
  local folder
  if [[ -n $HPCBAL_VENV ]]; then
    [[ -x $HPCBAL_VENV/bin/hpcbal ]] && printf '%s' "$HPCBAL_VENV" && return
    echo "HPCBAL_VENV is $HPCBAL_VENV, which has no bin/hpcbal; set it to what scripts/setup.sh has made" >&2
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
@before@
if ((${#MODULES[@]})); then
  type module >/dev/null 2>&1 || source /etc/profile || true # a batch shell may lack the function
  module load "${MODULES[@]}"
fi
if ((${#CONTAINER[@]} == 0)); then
  VENV=$(find_venv "$PWD" "$submit_dir" "$(folder_of_script)")
  if [[ -n $VENV ]]; then
    # shellcheck disable=SC1091  # made by scripts/setup.sh
    source "$VENV/bin/activate"
  fi
fi
set_launch
launch+=("${OPTIONS[@]}")

# Rank 0 writes into this file when all ranks catch signals, whether this start gets further than those before, and how
# the run has ended. It is where all nodes see it.
chain=${HPCBAL_CHAIN:-$job} # the first job, if this one was submitted to continue it
HPCBAL_END_FILE=$PWD/.hpcbal-$chain.end
is_stuck() { [[ -e $HPCBAL_END_FILE ]] && ! grep -qx progress "$HPCBAL_END_FILE"; }
was_stuck=0 # the start of this job before this one
! is_stuck || was_stuck=1
: >"$HPCBAL_END_FILE" || HPCBAL_END_FILE=$(mktemp)
export HPCBAL_END_FILE
count_restarts

# A signal that comes at once would stop every start before it has trained. The run knows the end of the job, too.
end=0 # of the job, in seconds of the Unix epoch; 0: not known
read_end
((end == 0)) || export HPCBAL_END_TIME=$end
left=$((end - $(date +%s)))
if ((0 < left && left <= lead + 60)); then # Slurm may be a minute early
  ((asked)) || deaf=$is_signalled
  asked=0
  echo "the job ends in $left s, and is signalled $lead s before: ignoring this signal; the run stops by itself a" \
    "minute before the end. Give the job @shown@" >&2
fi

@watching@watch_end &
@watching@watch=$!
@watching@
# Some minutes before the limit, this shell is signalled, and signals every rank through the launcher. A second USR2 has
# no effect on a rank.
"${launch[@]}" "${CONTAINER[@]}" hpcbal "${words[@]}" &
child=$!
((asked)) && stop
while :; do
  asked=0
  status=0
  wait "$child" || status=$?
  ((asked)) || break # a signal ends `wait` early: the ranks are still writing their checkpoints
done
@watching@kill "$watch" 2>/dev/null || true
@after@

# What rank 0 has noted decides, not the launcher's code; hpcbal knows the rules.
ended=$("${CONTAINER[@]}" hpcbal launcher --ended "$status") || ended="1 0"
read -r status lost <<<"$ended"

# 75: stopped cleanly. The same command continues from the checkpoints, also where something was lost, unless this start
# and the one before have got no further.
if ((status == 75 || lost)); then
  if [[ -n $output && -e $output/batch.cancel ]]; then # made by `hpcbal cancel`
    echo "the job was cancelled; submit it again to continue" >&2
  elif ((was_stuck)) && is_stuck; then
    echo "two starts in a row have got no further (no new checkpoint, no measured rate): the job ends here; see the" \
      "reasons above; if it was stopped too soon, give it @shown@; submit it again to continue" >&2
  elif ((restarts >= MAX_RESTARTS)); then
    echo "the job ends here, and is not done: it may come back $MAX_RESTARTS times (MAX_RESTARTS, or --until-done of" \
      "\`hpcbal submit\`), and did so $restarts times; submit it again to continue" >&2
  elif come_back; then
    exit "$status"
  else
    echo "the job could not be requeued and ends here; submit it again to continue" >&2
  fi
  ((status != 75)) || status=@code_to_end@
fi
rm -f "$HPCBAL_END_FILE" "${HPCBAL_END_FILE%.end}.starts"
exit "$status"
