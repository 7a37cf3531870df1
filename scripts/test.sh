#!/usr/bin/env bash
# Set up hpcbal in .venv with the tools for tests, then run lint, types and every test.
#
#   scripts/test.sh [ARGUMENT...]      arguments for pytest, for example: scripts/test.sh tests/unit -k flotilla
#
# The last line is pytest's. scripts/setup.sh lists the options of the set-up. The tests of the report open its
# page in Chromium, and those of the job scripts start a Slurm: this script installs both if apt-get may do so.
set -euo pipefail

case ${1:-} in -h | --help)
  sed -n '2,/^set /{/^#/s/^# \{0,1\}//p}' "${BASH_SOURCE[0]}"
  exit
  ;;
esac

# shellcheck source=scripts/setup.sh
source "$(dirname "${BASH_SOURCE[0]}")/setup.sh"
set_up dev
# shellcheck source=scripts/browser.sh
source "$ROOT/scripts/browser.sh"
bring_browser "$LOG"
# shellcheck source=scripts/slurm.sh
source "$ROOT/scripts/slurm.sh"
bring_slurm "$LOG"
cd "$ROOT"
export PATH=$VENV/bin:$PATH
# Containers often set it, and pytest would then rewrite every module of tests again in each worker.
unset PYTHONDONTWRITEBYTECODE

failed=()
check() { # check NAME COMMAND...: continue after a failure, to show all failures
  local name=$1
  shift
  printf -- '---- %s\n' "$name"
  "$@" || failed+=("$name")
}

check "ruff check" ruff check .
check "ruff format" ruff format --check .
check "mypy" mypy
check "codespell" codespell
check "yamllint" yamllint --strict .
check "shellcheck" shellcheck --external-sources .ci/run scripts/*.sh tests/e2e/*.sh slurm/*.sbatch pbs/*.pbs lsf/*.lsf flux/*.flux

if ((${#failed[@]})); then
  printf -- '---- failed: %s; pytest follows\n' "$(IFS=,; printf '%s' "${failed[*]}")"
fi
printf -- '---- pytest\n'
status=0
# Tests of real runs wait half of their time, so two workers per core keep the cores busy.
# tests/conftest.py says which tests stay together.
cores=$(nproc)
workers=$((cores < 4 ? 2 * cores : 8))
pytest -n "$workers" "$@" || status=$?
((status)) || ((${#failed[@]} == 0)) || status=1
exit "$status"
