# Every target sets up what it needs in .venv: a machine with Python 3.11 to 3.13 and make is enough.

PYTHON ?= $(firstword $(foreach name,python3.13 python3.12 python3.11 python3,\
	$(if $(shell $(name) -c 'import sys; print(sys.version_info >= (3, 11) or "")' 2>/dev/null),$(name))))
VENV := .venv
BIN := $(VENV)/bin
DEV := $(VENV)/.installed

.PHONY: help demo example test test-long lint types layers format wheel bench clean

help:
	@echo "make demo       fold the conversation that ships with turnfold, and show the tree"
	@echo "make example    start the example chat service (FastAPI) on http://127.0.0.1:8000"
	@echo "make test       all tests, on SQLite and on a real PostgreSQL"
	@echo "make test-long  the same with many more generated cases"
	@echo "make lint       format, lint, types and the order of imports"
	@echo "make wheel      build the wheel and try it in an empty environment"
	@echo "make bench      the benchmarks of the README"

$(DEV): pyproject.toml hatch_build.py
	@test -n "$(PYTHON)" || { echo "turnfold needs Python 3.11 or newer"; exit 1; }
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "Installing turnfold and its tools into $(VENV) …"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[dev]'
	@touch $(DEV)

demo: $(DEV)
	@$(BIN)/turnfold demo

example: $(DEV)
	$(BIN)/uvicorn --factory examples.chat_service:create_app

test: $(DEV)
	$(BIN)/python -m pytest

test-long: $(DEV)
	HYPOTHESIS_PROFILE=long $(BIN)/python -m pytest

lint: $(DEV)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo

format: $(DEV)
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

wheel: $(DEV)
	rm -rf dist build/empty
	$(BIN)/python -m build --outdir dist
	$(BIN)/python -m venv build/empty
	build/empty/bin/python -m pip install --quiet --disable-pip-version-check dist/*.whl
	cd build && empty/bin/python ../tests/smoke.py
	build/empty/bin/python -m pip install --quiet --disable-pip-version-check "$$(ls $(CURDIR)/dist/*.whl)[cli]"
	cd build && empty/bin/turnfold demo --database empty/demo.db

bench: $(DEV)
	@for name in real_conversations live_conversation backlog constant_time bulk_append token_counter \
		concurrent_sessions import_time locomo_recall search_time \
		accepted_contexts context_time chat_load; do \
		echo "\$$ python -m benchmarks.$$name"; $(BIN)/python -W ignore -m benchmarks.$$name || exit 1; done

clean:
	rm -rf $(VENV) build dist .mypy_cache .pytest_cache .ruff_cache .hypothesis .import_linter_cache
