count_restarts() { # of this job, or of the first one whose work it continues
  local file=${HPCBAL_END_FILE%.end}.starts
  restarts=$(cat "$file" 2>/dev/null) || restarts=0
  echo $((restarts + 1)) >"$file" || true
}
