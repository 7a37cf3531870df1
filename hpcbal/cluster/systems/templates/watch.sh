watch_end() { # nobody signals this shell before the limit: it does so itself, and when `hpcbal cancel` asks for it
  local now pipe stop_at=$((left > lead + 60 ? end - lead : 0))
  exec {pipe}<> <(:)
  while :; do
    read -rt 5 -u "$pipe" || true # a pause without another process
    printf -v now '%(%s)T' -1
    if is_cancelled || ((stop_at && now >= stop_at)); then break; fi
  done
  kill -USR2 $$
}

note_next() { # the job that continues this one, by what the command that submits it has printed
  [[ -n $output ]] || return 0
  "${CONTAINER[@]}" hpcbal launcher --continues "$id" --system "$1" --log "${log-}" --output "$output" <<<"$2" ||
    echo "the job is submitted again, but its number is not noted ($1: $2): 'hpcbal status' and 'hpcbal cancel'" \
      "do not know it" >&2
}
