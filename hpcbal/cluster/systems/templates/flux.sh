#!/usr/bin/env bash
@options@
#
# Untested on Flux: written from the manual of flux-core, and tested only with stand-ins for its commands.
#
@submitted@# Written by `hpcbal submit`, from hpcbal/cluster/systems/templates.
@general@# Train one ensemble. Submit it from any directory; relative paths start there:
@general@#
@general@#   flux batch flux/@file@ CONFIG [hpcbal run ARGUMENT...]
@general@#   flux batch flux/@file@ profile CONFIG     # only measure the training rates, for `hpcbal plan`
@general@#   flux batch flux/@file@ evaluate DIR [hpcbal evaluate ARGUMENT...]
@general@#
@general@# `hpcbal submit CONFIG` writes such a script for a configuration and a site; this one is for those who edit it.
@general@# In arguments, %j stands for the identifier of the job. Flux hides from a script where it lies: outside of the directory
@general@# of the clone, set HPCBAL_VENV. Bank and queue: flux batch --bank=MY_BANK --queue=MY_QUEUE ...
@general@#
@general@# Ranks per node (below): slots.per_node trainers + slots.preprocessors_per_node + 1. --exclusive: the job has whole
@general@# nodes, with all their cores and GPUs. This script signals itself before the end of the job, and submits itself
@general@# again, because users may not requeue.

is_signalled=0
read_numbers() { # of the job, and where it was submitted
  job=$FLUX_ENCLOSING_ID submit_dir=$PWD task=$HPCBAL_TASK
  id=$job
  lead=@lead_s@
  [[ -n $HPCBAL_CHAIN ]] || is_first=1 # Flux starts no job again
@submitted@  log=@log@
}
@general@
@general@read_words() { given=("$@") words=("${@//%j/$job}"); }

show_job() { timeout 30 flux --parent jobs --json "$id"; }

folder_of_script() { :; }

set_launch() { # hpcbal assigns the cores and the GPUs itself
  launch=("$LAUNCHER" run --nodes="$NUM_NODES" --tasks-per-node="$RANKS_PER_NODE" --exclusive --setopt=cpu-affinity=off)
  launch+=(--setopt=gpu-affinity=off)
}

@watch@

come_back() {
  local next
  export HPCBAL_CHAIN=$chain HPCBAL_TASK=$task
@submitted@  next=$(flux --parent batch "$0") && note_next flux "$next"
@general@  next=$(flux --parent batch "$0" "${given[@]}") && note_next flux "$next"
}

@body@
