#!/usr/bin/env bash
# Set up hpcbal in .venv, train the demonstration ensemble of configs/quickstart.yaml, and evaluate it.
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
export PATH=$VENV/bin:$PATH

output=${HPCBAL_OUTPUT:-runs/quickstart}
for ((i = 1; i <= $#; i++)); do
  case ${!i} in
  -o | --output) next=$((i + 1)) && output=${!next:-$output} ;;
  --output=*) output=${!i#*=} ;;
  output.dir=*) output=${!i#*=} ;;
  esac
done

code=0
hpcbal run configs/quickstart.yaml "$@" || code=$?
if ((code != 0 && code != 3)); then # 3: some networks failed; the others are evaluated
  exit "$code"
fi
echo
hpcbal evaluate "$output"
exit "$code"
