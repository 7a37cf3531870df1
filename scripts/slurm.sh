#!/usr/bin/env bash
# Install the Slurm that tests/e2e/test_slurm*.py start on this machine; scripts/test.sh sources this file.
#
# Installs Debian's packages if apt-get exists and the user is root. Otherwise one sentence says what is missing,
# and those tests are skipped with the same reason.
set -euo pipefail

has_slurm() { type -P slurmctld munged ip >/dev/null && compgen -G '/usr/lib/*/libpmix.so' >/dev/null; }

bring_slurm() { # LOG: reports what it does, never fails
  local log=$1
  has_slurm && return
  if ! type -P apt-get >/dev/null || (($(id -u) != 0)); then
    printf 'set-up: no Slurm; the tests of the job scripts on a real one are skipped, and apt-get needs root\n' >&2
    return
  fi
  printf 'set-up: installing Slurm, for the tests of the job scripts (a download of about 5 MB)\n' >&2
  {
    printf '\n==== Slurm\n'
    timeout 300 apt-get update || true
    # libpmix-dev holds the libpmix.so that `srun --mpi=pmix` opens.
    DEBIAN_FRONTEND=noninteractive timeout 900 apt-get install -y --no-install-recommends \
      slurm-wlm munge libpmix-dev iproute2
  } >>"$log" 2>&1 </dev/null || true
  has_slurm || printf 'set-up: Slurm could not be installed (see %s); its tests are skipped\n' "$log" >&2
}
