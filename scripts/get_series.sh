#!/usr/bin/env bash
# Get the data of configs/vowels.yaml and configs/plaid.yaml: .ts files of the UCR and UEA archives, 4 MB.
#
# They are part of sktime's wheel. The wheel is downloaded with pip and unpacked; nothing is installed.
#
# Usage: scripts/get_series.sh [DIRECTORY]     (default: data/series)
set -euo pipefail

directory=${1:-data/series}
python=${PYTHON:-python3}
wheel_dir=$(mktemp -d)
trap 'rm -rf "$wheel_dir"' EXIT

"$python" -m pip download --quiet --disable-pip-version-check --no-deps --dest "$wheel_dir" sktime==0.30.0
mkdir -p "$directory"
"$python" - "$wheel_dir"/sktime-*.whl "$directory" <<'PYTHON'
import sys
import zipfile
from pathlib import Path

wheel, directory = sys.argv[1], Path(sys.argv[2])
with zipfile.ZipFile(wheel) as archive:
    for name in ("JapaneseVowels", "PLAID"):
        for part in ("TRAIN", "TEST"):
            file = f"{name}_{part}.ts"
            (directory / file).write_bytes(archive.read(f"sktime/datasets/data/{name}/{file}"))
            print(directory / file)
PYTHON
