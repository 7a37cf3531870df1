watch_end() { # nobody signals this shell before the limit: it does so itself, and when `hpcbal cancel` asks for it
  local now pipe stop_at=$((left > lead + 60 ? end - lead : 0))
  exec {pipe}<> <(:)
  while :; do
    read -rt 5 -u "$pipe" || true # a pause without another process
    printf -v now '%(%s)T' -1
    if [[ -n $output && -e $output/batch.cancel ]] || ((stop_at && now >= stop_at)); then break; fi
  done
  kill -USR2 $$
}

note_next() { # the job that continues this one
  [[ -z $output ]] || printf '{"id": "%s", "continues": "%s"}\n' "$1" "$id" >>"$output/batch.jsonl"
}
