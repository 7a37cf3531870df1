#!/usr/bin/env bash
@options@
#
# Written by `hpcbal submit`: compares the runs of an array when all of them have ended.
@guard@

submit_dir=@directory@
folder_of_script() { :; }
cd "$submit_dir"
@before@
MODULES=(@modules@)
CONTAINER=(@container@)
HPCBAL_VENV=@venv@

@environment@

doing=''
"${CONTAINER[@]}" hpcbal @compare@
