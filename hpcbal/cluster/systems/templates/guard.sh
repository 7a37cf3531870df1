set -eo pipefail # without -u: module functions and activation scripts use variables that are not set
doing='the beginning of its script' # in front of the run; empty: from then on the run says how it ends
leave() {
  doing=''
  exit "$1"
}
failed() { # a code of another program must not look like one of a run, such as 75, which starts a job again
  [[ -n $doing ]] || return 0
  echo "the job ends here, because $doing has ended with $1 (last command: $2)" >&2
  leave 2
}
trap 'failed $? "$BASH_COMMAND"' EXIT
