#!/usr/bin/env bash
# Set up hpcbal in .venv and train the demonstration ensemble of configs/quickstart.yaml.
#
#   scripts/quickstart.sh [ARGUMENT...]      arguments for `hpcbal run`, for example --output DIR
#
# Needs only Python 3.11 and a C++ compiler. When started again, it skips the set-up, continues an interrupted
# run and reports a finished one. scripts/setup.sh lists the options of the set-up.
set -euo pipefail

case ${1:-} in -h | --help)
  sed -n '2,/^set /{/^#/s/^# \{0,1\}//p}' "${BASH_SOURCE[0]}"
  exit
  ;;
esac

# shellcheck source=scripts/setup.sh
source "$(dirname "${BASH_SOURCE[0]}")/setup.sh"
set_up run
cd "$ROOT"
PATH=$VENV/bin:$PATH exec "$VENV/bin/hpcbal" run configs/quickstart.yaml "$@"
