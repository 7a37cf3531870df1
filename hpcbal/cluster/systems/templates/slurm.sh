#!/usr/bin/env bash
@options@
@general@##SBATCH --account=MY_PROJECT
@general@##SBATCH --partition=MY_PARTITION
#
@submitted@# Written by `hpcbal submit`, which hpcbal/cluster/systems/templates describes.
@general@# Train one ensemble. Submit it from any directory; relative paths start there:
@general@#
@general@#   sbatch slurm/@file@ CONFIG [hpcbal run ARGUMENT...]
@general@#   sbatch slurm/@file@ profile CONFIG     # only measure the training rates, for `hpcbal plan`
@general@#   sbatch slurm/@file@ evaluate DIR [hpcbal evaluate ARGUMENT...]
@general@#
@general@# `hpcbal submit CONFIG` writes such a script for a configuration and a site; this one is for those who edit it.
@general@# `run` measures rates that are missing by itself. `profile` is for a short job that shows what a long one will need.
@general@# In arguments, %j, %A and %a stand for the numbers of the job, as in Slurm's --output; %A and %a in job arrays only:
@general@#   sbatch --array=1-3 slurm/@file@ CONFIG --set seed=%a --output runs/%a
@general@#
@general@# Tasks per node: slots.per_node trainers (per_gpu a GPU) + slots.preprocessors_per_node + 1: 4 + 1 + 1. The last one
@general@# is the scheduler on the first node, and one more preprocessor on every other node. --ntasks-per-node gives all nodes
@general@# the same number; with --ntasks alone Slurm may spread the ranks unevenly, for example 3 + 1 instead of 2 + 2.
@general@# The environment, the data and the output must be on a file system that all nodes share.
@general@# Cores: tasks x --cpus-per-task is what a node has (here 48). --exclusive: no other job slows a node down.
@general@# On nodes without GPUs, remove the line --gpus-per-node and set slots.per_node to a number.
@general@# Account and partition: remove one # of their lines, or give them to sbatch. What is given there wins over the lines
@general@# above, for example: sbatch --account=my --time=12:00:00 --cpus-per-task=4 slurm/@file@ ...

# Slurm signals this shell only (B:). Without B: the ranks of the first node would get no signal under mpirun, because
# they are not a Slurm step.
is_signalled=1
read_numbers() { # of the job and its task in an array, and where it was submitted
  job=$SLURM_JOB_ID submit_dir=$SLURM_SUBMIT_DIR task=${SLURM_ARRAY_TASK_ID:-}
  [[ -z $task ]] || job=${SLURM_ARRAY_JOB_ID}_$task
  id=$job
  ((${SLURM_RESTART_COUNT:-0})) || is_first=1
  lead=$(sed -n 's/^#SBATCH --signal[= ]//p' "$0" | tail -n 1) # the last one wins
  lead=$(sed -n 's/^B:\(SIG\)\?USR2@\([0-9]*\).*/\2/p' <<<"$lead")
}

show_job() { @question@; }
@general@
@general@read_words() { # the number of a task may be that of the whole array
@general@  given=("$@") words=("${@//%j/$SLURM_JOB_ID}")
@general@  [[ -n $task ]] || return 0
@general@  words=("${words[@]//%A/$SLURM_ARRAY_JOB_ID}")
@general@  words=("${words[@]//%a/$task}")
@general@}

folder_of_script() { # Slurm runs a copy of this script; the original may lie in a clone that has the environment
  local command
  command=$(scontrol show job "$job" | sed -n 's/^ *Command=//p')
@submitted@  printf '%s' "$command"
@general@  printf '%s' "${command%" ${given[*]}"}" # a path may have spaces, too
}

set_launch() { # the line that `hpcbal plan` shows, with this job's nodes, tasks, cores and GPUs
  local line
  line=$("${CONTAINER[@]}" hpcbal launcher "$LAUNCHER" | last_line "$LAUNCHER .*")
  if [[ -z $line ]]; then
    echo "'hpcbal launcher $LAUNCHER' has printed no line that begins with $LAUNCHER" >&2
    leave 2
  fi
  read -r -a launch <<<"$line"
}

come_back() { scontrol requeue "$job"; }

@body@
