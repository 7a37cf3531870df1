find_venv() { # prints HPCBAL_VENV, or a .venv with hpcbal in these folders or above; nothing if hpcbal is on PATH
  local folder
  if [[ -n $HPCBAL_VENV ]]; then
    [[ -x $HPCBAL_VENV/bin/hpcbal ]] && printf '%s' "$HPCBAL_VENV" && return
    echo "HPCBAL_VENV is $HPCBAL_VENV, which has no bin/hpcbal; set it (or venv in the site file) to what scripts/setup.sh has made" >&2
    exit 2
  fi
  for folder in "$@"; do
    while [[ $folder == /* ]]; do
      [[ -x $folder/.venv/bin/hpcbal ]] && printf '%s' "$folder/.venv" && return
      folder=${folder%/*}
    done
  done
  type -P hpcbal >/dev/null && return
  echo "no .venv with hpcbal in $1 or above it; set HPCBAL_VENV to the one that scripts/setup.sh has made" >&2
  exit 2
}

# ---- the environment ------------------------------------------------------------------------------------------
if ((${#MODULES[@]})); then
  doing='module load'
  type module >/dev/null 2>&1 || source /etc/profile || true # a batch shell may lack the function
  module load "${MODULES[@]}"
fi
if ((${#CONTAINER[@]} == 0)); then
  doing='the activation of the environment'
  VENV=$(find_venv "$PWD" "$submit_dir" "$(folder_of_script)") || leave 2
  if [[ -n $VENV ]]; then
    # shellcheck disable=SC1091  # made by scripts/setup.sh
    source "$VENV/bin/activate"
  fi
fi
