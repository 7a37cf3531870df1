#!/usr/bin/env bash
@options@
@general@##BSUB -P MY_PROJECT
@general@##BSUB -q MY_QUEUE
#
# Untested on LSF: written from its manual, and tested only with stand-ins for its commands.
#
@submitted@# Written by `hpcbal submit`, from hpcbal/cluster/systems/templates.
@general@# Train one ensemble. Submit it from any directory; relative paths start there:
@general@#
@general@#   HPCBAL_ARGUMENTS="CONFIG [hpcbal run ARGUMENT...]" bsub < lsf/@file@
@general@#   HPCBAL_ARGUMENTS="profile CONFIG" bsub < lsf/@file@     # only measure the rates, for `hpcbal plan`
@general@#   HPCBAL_ARGUMENTS="evaluate DIR [hpcbal evaluate ARGUMENT...]" bsub < lsf/@file@
@general@#
@general@# `hpcbal submit CONFIG` writes such a script for a configuration and a site; this one is for those who edit it.
@general@# In arguments, %J and %I stand for the numbers of the job and in its array, as in LSF's -o.
@general@# LSF hides from a script where it lies: outside of the clone, also set HPCBAL_VENV to the environment.
@general@#
@general@# Ranks of a node: slots.per_node trainers (per_gpu a GPU) + slots.preprocessors_per_node + 1. The last one is the
@general@# scheduler on the first node, and one more preprocessor on every other node. The numbers are repeated below.
@general@# With jsrun, -nnodes allocates whole nodes, and one resource set per node holds all GPUs, cores and ranks of the node.
@general@# Elsewhere -n counts ranks, ptile says how many a node gets, affinity their cores, and -x keeps other jobs away.
@general@# The environment, the data and the output must be on a file system that all nodes share.
@general@# -Q 75: hpcbal exits with 75 when it has stopped cleanly before the end. LSF then requeues the job, and the same
@general@# command continues from the checkpoints. -r: it also starts again if a host fails.

is_signalled=1
read_numbers() { # of the job and its task in an array, and where it was submitted
  job=$LSB_JOBID submit_dir=$LS_SUBCWD task=${LSB_JOBINDEX#0} # 0: no array
  [[ -z $task ]] || job=$LSB_JOBID.$task
  id=$LSB_JOBID${task:+[$task]}
  lead=0 # not known here: LSF signals this shell (-wa, -wt)
}

show_job() { @question@; }
@general@
@general@read_words() {
@general@  read -r -a words <<<"${HPCBAL_ARGUMENTS//%J/$LSB_JOBID}"
@general@  words=("${words[@]//%I/${task:-0}}")
@general@}

folder_of_script() { :; }

set_launch() { # hpcbal assigns the cores itself
  case $LAUNCHER in
  jsrun)
    launch=(jsrun --nrs "$NUM_NODES" --rs_per_host 1 --tasks_per_rs "$RANKS_PER_NODE")
    launch+=(--cpu_per_rs $((RANKS_PER_NODE * CORES_PER_RANK)) --gpu_per_rs "$GPUS_PER_NODE" --bind none)
    ;;
  *)
    launch=(mpirun -n $((NUM_NODES * RANKS_PER_NODE)) --bind-to none)
    ((NUM_NODES == 1)) || launch+=(--map-by "ppr:$RANKS_PER_NODE:node" --hostfile "$LSB_DJOB_HOSTFILE")
    ;;
  esac
}

come_back() { status=75; } # LSF starts the job again (-Q 75)

@body@
