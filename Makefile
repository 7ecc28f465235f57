# Every target sets itself up: the first one creates .venv, later ones find the stamp.
#
#   make demo    compile, check against autograd, train sum against delta, draw the picture
#   make test    what CI runs
#   make bench   the tables of the documentation, measured again
#   make docs    the outputs that the documentation shows, made again

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/installed
OLDER := $(VENV)/triton-3.6
JOBS ?= $(shell nproc 2>/dev/null || echo 2)

.DELETE_ON_ERROR:
.PHONY: install demo test lint types unit bench generated docs clean

install: $(STAMP)

$(STAMP): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[dev,models]'
	touch $@

test: lint types unit

lint: $(STAMP)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .

types: $(STAMP)
	$(BIN)/mypy

# Triton 3.6, which torch 2.11 comes with, beside the newest; its interpreter needs an older numpy.
$(OLDER)/installed: Makefile | $(STAMP)
	$(BIN)/python -m pip install --quiet --no-deps --upgrade --target $(OLDER) triton==3.6.0 numpy==2.3.5
	touch $@

# One torch thread per worker; a test that is about threads sets its own number.
unit: export FWGEN_OLDER_TRITON := $(abspath $(OLDER))
unit: $(STAMP) $(OLDER)/installed
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q -n $(JOBS) --dist worksteal -m "not slow and not gpu"

demo: $(STAMP)
	$(BIN)/python -m fwgen.models.demo

bench: $(STAMP)
	$(BIN)/python -m fwgen.bench; kernels=$$?; $(BIN)/python -m fwgen.models.speed && exit $$kernels

# The committed packages, compiled again after a change of the compiler or its templates.
generated: $(STAMP)
	for rule in deltanet sum recurrent_delta; do $(BIN)/fwgen compile $$rule -o generated || exit 1; done

# Runs the commands that README and docs show and puts their output in place.
docs: generated
	$(BIN)/python docs/dumps.py

clean:
	rm -rf build dist *.egg-info runs
