# make help: the targets. Nothing needs to be done before any of them.

SUPPORTED := 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 12))'
PYTHON ?= $(firstword $(foreach p,python3 python3.11 python3.12,$(shell \
	$(p) -c $(SUPPORTED) 2>/dev/null && echo $(p))))
TORCH_INDEX ?=
OUT ?= runs
BIN := .venv/bin
INSTALLED := .venv/.installed

.PHONY: help install demo test test-data lint bench lock wheel
help: ## list the targets
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/\1\t\2/p' Makefile | expand -t 12

install: $(INSTALLED) ## make .venv with everything in it; TORCH_INDEX=URL takes torch from another index

$(INSTALLED): pyproject.toml constraints.txt
	@test -n "$(PYTHON)" && $(PYTHON) -c $(SUPPORTED) 2>/dev/null || { echo "fairseq_plugins needs Python 3.11 or 3.12: install one, or name it with make PYTHON=..." >&2; exit 1; }
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(if $(TORCH_INDEX),$(BIN)/pip install -q -c constraints.txt --index-url $(TORCH_INDEX) torch)
	$(BIN)/pip install -q -c constraints.txt -e '.[dev]'
	@touch $@

demo: $(INSTALLED) ## prepare, train, decode, score and report small translators and captioners (minutes)
	$(BIN)/fairseq-share recipe run translation/demo out=$(OUT)/demo
	$(BIN)/fairseq-share recipe run captioning/demo out=$(OUT)/captioning_demo

test: $(INSTALLED) ## run the tests
	$(BIN)/python -m pytest -n auto --dist loadfile

test-data: $(INSTALLED) ## run the checks on real data; DATA=FOLDER names it
	DATA=$(DATA) $(BIN)/python -m pytest -m data -rs

lint: $(INSTALLED) ## ruff and mypy
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

bench: $(INSTALLED) ## measure speed and memory against fairseq (on an idle machine)
	for file in train_step veps_step generate prepare ciderd captioning_step features; do $(BIN)/python -m benchmarks.$$file || exit 1; done

lock: ## renew constraints.txt from the newest versions that install together
	rm -rf .lock && $(PYTHON) -m venv .lock
	.lock/bin/pip install -q -e '.[dev,captioning]'
	{ sed -n '/^#/p' constraints.txt; .lock/bin/pip freeze --exclude-editable; } > .lock/constraints.txt
	mv .lock/constraints.txt constraints.txt && rm -rf .lock

wheel: $(INSTALLED) ## build dist/*.whl
	$(BIN)/pip wheel -q --no-deps -w dist .
