#!/usr/bin/env bash
# Install the browser that the tests of the report's page use; scripts/test.sh sources this file.
#
# Installs Debian's Chromium if apt-get exists and the user is root. Otherwise one sentence says what is missing,
# and the tests that need a browser fail with the same sentence.
set -euo pipefail

BROWSERS=(chromium chromium-browser google-chrome google-chrome-stable) # as in tests/e2e/test_report_browser.py

has_browser() {
  local name
  for name in "${BROWSERS[@]}"; do
    type -P "$name" >/dev/null && return 0
  done
  return 1
}

bring_browser() { # LOG: reports what it does, never fails
  local log=$1
  has_browser && return
  if ! type -P apt-get >/dev/null || (($(id -u) != 0)); then
    printf 'set-up: no Chromium on PATH; the tests of the report need it, and apt-get needs root\n' >&2
    return
  fi
  printf 'set-up: installing Chromium, for the tests of the report (a download of about 0.1 GB)\n' >&2
  {
    printf '\n==== Chromium\n'
    # A fresh machine has no package lists. Without fonts, a page is measured without its text.
    timeout 300 apt-get update || true
    DEBIAN_FRONTEND=noninteractive timeout 900 apt-get install -y --no-install-recommends chromium fonts-dejavu-core
  } >>"$log" 2>&1 </dev/null || true
  has_browser ||
    printf 'set-up: Chromium could not be installed (see %s); the tests of the report will fail\n' "$log" >&2
}
