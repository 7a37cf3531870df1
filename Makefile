# Single steps of scripts/test.sh, in the environment that it sets up.
BIN := .venv/bin

.PHONY: help lint type test test-mpi bench

help:
	@echo "make lint | type | test | test-mpi | bench; everything, with set-up: scripts/test.sh"

lint:
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/codespell
	$(BIN)/yamllint --strict .
	$(BIN)/shellcheck --external-sources .ci/run scripts/*.sh slurm/*.sbatch pbs/*.pbs lsf/*.lsf flux/*.flux

type:
	$(BIN)/mypy

test:
	$(BIN)/pytest -m "not mpi and not e2e"

test-mpi:
	$(BIN)/pytest -m mpi

bench:
	set -e; for file in bench/bench_*.py; do echo "== $$file"; $(BIN)/python $$file; done
