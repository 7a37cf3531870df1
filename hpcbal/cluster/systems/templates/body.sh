@guard@
asked=0 deaf=0 child='' # a USR2 before there are ranks is kept
passed=USR2             # the signal that the launcher passes on to the ranks
trap stop USR2
is_first=0              # whether the batch system says that it has not started this job before
is_cancelled() { [[ -n $output && -e $output/@cancel@ ]]; }
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
@before@
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
# ----------------------------------------------------------------------------------------------------------------
@general@
@general@read_words "$@"
@general@output=''
@general@case ${words[0]} in
@general@profile | evaluate) ;;
@general@'')
@general@  echo "usage: @usage@" >&2
@general@  leave 2
@general@  ;;
@general@*) words=(run "${words[@]}") ;;
@general@esac

@environment@

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
end=$({ show_job 2>/dev/null || true; } | "${CONTAINER[@]}" hpcbal launcher --starting --system @system@ \
  --most-restarts "$MAX_RESTARTS" ${output:+--output "$output" --mark @cancel@ --job "$id"} | last_line '[0-9]+') || status=$?
end=${end:-0}
unset HPCBAL_CHAIN # a job that is submitted from here does not continue this one
if ((status)); then
  rm -f "$HPCBAL_END_FILE"
  ((status != 75)) || leave @code_to_end@
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
    "minute before the end. Give the job @shown@" >&2
fi

doing="'hpcbal launcher'"
set_launch
launch+=("${OPTIONS[@]}")
doing=''

@watching@watch_end &
@watching@watch=$!
@watching@
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
@watching@kill "$watch" 2>/dev/null || true

# What rank 0 has noted decides, not the launcher's code; hpcbal knows the rules. `again`: the same command continues from
# the checkpoints.
ended=$("${CONTAINER[@]}" hpcbal launcher --ended "$status" --most-restarts "$MAX_RESTARTS" ${output:+--output "$output" --mark @cancel@} |
  last_line '[0-9]+ (again|end)') || ended=''
read -r status next <<<"${ended:-1 end}"
@after@
if [[ $next == again ]]; then
  if come_back; then exit "$status"; fi
  echo "the job could not be started again and ends here; submit it again to continue" >&2
fi
@compares@[[ $chain == "$job" ]] || "${CONTAINER[@]}" hpcbal @compare@ || true # others may have compared before this end
((status != 75)) || status=@code_to_end@
rm -f "$HPCBAL_END_FILE"
exit "$status"
