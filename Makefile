# make serve: the demo model on http://127.0.0.1:8000. make test: everything that is checked.
# Needs a Python from 3.11 to 3.13 and nothing else; all of it lives in .venv and the user's cache folder.

FITS := import sys; sys.exit(not (3, 11) <= sys.version_info[:2] < (3, 14))
PYTHON ?= $(shell for python in python3 python3.13 python3.12 python3.11; do \
	"$$python" -c "$(FITS)" 2>/dev/null && command -v "$$python" && break; done)
HOST ?= 127.0.0.1
PORT ?= 8000
BIN := .venv/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check

.PHONY: serve test lint bench proto clean

serve: .venv/serve.stamp
	$(BIN)/helios serve --host $(HOST) --port $(PORT)

test: lint
	$(BIN)/python -m pytest -n auto --maxprocesses 4 --dist loadfile

lint: .venv/dev.stamp
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/python proto/generate.py --check

bench: .venv/serve.stamp
	$(BIN)/python -m helios_dod.perf bench --baseline perf/results/bench.json

proto: .venv/dev.stamp
	$(BIN)/python proto/generate.py

clean:
	rm -rf .venv build dist *.egg-info

.venv/bin/python:
	@test -n "$(PYTHON)" || { echo "no Python from 3.11 to 3.13 found; name one: make PYTHON=..." >&2; exit 1; }
	$(PYTHON) -m venv .venv

.venv/serve.stamp: pyproject.toml | .venv/bin/python
	$(PIP) install --quiet --editable '.[demo]'
	touch $@

.venv/dev.stamp: pyproject.toml | .venv/bin/python
	$(PIP) install --quiet --editable '.[dev]'
	touch $@
