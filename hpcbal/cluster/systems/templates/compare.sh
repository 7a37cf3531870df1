#!/usr/bin/env bash
@options@
#
# Written by `hpcbal submit`: compares the runs of an array when all of them have ended.
set -eo pipefail # without -u: module functions and activation scripts use variables that are not set
cd @directory@
MODULES=(@modules@)
CONTAINER=(@container@)
VENV=@venv@
@before@
if ((${#MODULES[@]})); then
  type module >/dev/null 2>&1 || source /etc/profile || true # a batch shell may lack the function
  module load "${MODULES[@]}"
fi
if ((${#CONTAINER[@]} == 0)) && [[ -n $VENV ]]; then
  # shellcheck disable=SC1091  # made by scripts/setup.sh
  source "$VENV/bin/activate"
fi
"${CONTAINER[@]}" hpcbal @compare@
