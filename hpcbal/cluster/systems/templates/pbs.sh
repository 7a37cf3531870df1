#!/usr/bin/env bash
@options@
@general@##PBS -A MY_PROJECT
@general@##PBS -q MY_QUEUE
#
# Untested on PBS: written from the manual of OpenPBS, and tested only with stand-ins for its commands.
#
@submitted@# Written by `hpcbal submit`, from hpcbal/cluster/systems/templates.
@general@# Train one ensemble. Submit it from any directory; relative paths start there:
@general@#
@general@#   HPCBAL_ARGUMENTS="CONFIG [hpcbal run ARGUMENT...]" qsub -v HPCBAL_ARGUMENTS pbs/@file@
@general@#   HPCBAL_ARGUMENTS="profile CONFIG" qsub -v HPCBAL_ARGUMENTS pbs/@file@     # only measure the rates
@general@#   HPCBAL_ARGUMENTS="evaluate DIR [hpcbal evaluate ARGUMENT...]" qsub -v HPCBAL_ARGUMENTS pbs/@file@
@general@#
@general@# `hpcbal submit CONFIG` writes such a script for a configuration and a site; this one is for those who edit it.
@general@# In arguments, %j and %a stand for the numbers of the job and in its array (qsub -J 1-3).
@general@# PBS hides from a script where it lies: outside of the directory of the clone, add HPCBAL_VENV to the variables (-v).
@general@#
@general@# A chunk of `select` is a node: mpiprocs ranks (slots.per_node trainers + slots.preprocessors_per_node + 1), ncpus
@general@# cores for all of them, ngpus GPUs. The numbers are repeated below. place=scatter:excl: one chunk on each node, and
@general@# no other job there. On nodes without GPUs, remove :ngpus=4 and set slots.per_node to a number.
@general@# PBS signals no job before its end: this script does. Users may not requeue: the script submits itself again.

is_signalled=0
read_numbers() { # of the job and its task in an array, and where it was submitted
  id=$PBS_JOBID job=${PBS_JOBID%%.*} submit_dir=$PBS_O_WORKDIR task=${PBS_ARRAY_INDEX:-$HPCBAL_TASK}
  lead=@lead_s@
  export PBS_WALLTIME=${PBS_WALLTIME:-@time_s@} # if qstat does not answer; PBS itself does not set it
  cd "$submit_dir"
@submitted@  log=@log@
@submitted@  exec >>"${log//%j/$job}" 2>&1 # PBS itself shows it only when the job has ended
}
@general@
@general@read_words() {
@general@  read -r -a words <<<"${HPCBAL_ARGUMENTS//%j/$job}"
@general@  words=("${words[@]//%a/$task}")
@general@}

show_job() { @question@; }

folder_of_script() { :; }

set_launch() { # hpcbal assigns the cores itself
  case $LAUNCHER in
  mpirun) # of Open MPI, which knows the nodes of the job only if it was built for PBS
    launch=(mpirun -n $((NUM_NODES * RANKS_PER_NODE)) --map-by "ppr:$RANKS_PER_NODE:node" --bind-to none)
    launch+=(--hostfile "$PBS_NODEFILE")
    ;;
  *) # of MPICH, Intel MPI or PALS; the first two die of a USR2, and pass USR1 on
    launch=("$LAUNCHER" -n $((NUM_NODES * RANKS_PER_NODE)) -ppn "$RANKS_PER_NODE")
    passed=USR1
    ;;
  esac
}

@watch@

come_back() {
  local next
  export HPCBAL_CHAIN=$chain HPCBAL_TASK=$task HPCBAL_ARGUMENTS=$HPCBAL_ARGUMENTS HPCBAL_VENV=$HPCBAL_VENV
  next=$(qsub -v HPCBAL_CHAIN,HPCBAL_TASK,HPCBAL_ARGUMENTS,HPCBAL_VENV "$0") && note_next pbs "$next"
}

@body@
