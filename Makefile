# Bare `make` lists the targets. Needs python3 (3.11 or newer) and make, nothing else:
# .venv is set up on demand from requirements.lock.
PYTHON ?= python3
PY := .venv/bin/python
PEERS := .venv-peers/bin/python
GPU_PYTHON ?= $(PYTHON)
OLDEST := .venv-oldest/bin/python
NEWEST := .venv-newest/bin/python
# Python 3.14 is the newest that Numba is built for. A name that does not run is passed over: pyenv
# puts such on the PATH. NEWEST_PYTHON=path takes another.
NEWEST_PYTHON = $(or $(firstword $(foreach minor,14 13 12,$(shell python3.$(minor) -c \
	'import ensurepip, sys; print(sys.executable)' 2>/dev/null))),$(PYTHON))
RELEASES := .venv-releases/bin/python
# Of `make notebook`: paper, or smoke.
PRESET ?= paper
TESTS ?=    # what the test targets run, as pytest takes it; empty is every test
REPORT := $(PY) tools/report.py

NOTEBOOKS := $(sort $(wildcard notebooks/[0-9][0-9]_*.ipynb))
PAPER := $(NOTEBOOKS:notebooks/%=build/paper/%)
NOTEBOOK = $(if $(NB),$(wildcard notebooks/$(NB)_*.ipynb))
SMOKE := $(NOTEBOOKS:notebooks/%=build/smoke/%)
# What a notebook's results depend on: an edit here executes it again.
SOURCES := $(shell find lstm_kernels -name '*.py' 2>/dev/null) $(wildcard data/*.csv)
CHECKED := $(wildcard lstm_kernels tests tools notebooks)

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.NOTPARALLEL:    # notebooks measure: two at once would disturb each other

.PHONY: help report smoke notebook test test-oldest test-isa test-hostile test-newest test-releases test-arm bench bench-peers bench-isa gpu ptx readme accept lint format lock clean

help:    ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "%-14s %s\n", $$1, $$2 }' Makefile

report: build/paper/html/index.html    ## execute the notebooks in full, pages to build/paper/html/
	@echo "open $<"

smoke: build/smoke/html/index.html    ## the same on small sizes, to build/smoke/
	@echo "open $<"

notebook: .venv/.stamp    ## execute one notebook and make its page: NB=03, PRESET=smoke for small sizes
	$(if $(NOTEBOOK),,$(error NB: got "$(NB)", want the number of a notebook, as in make notebook NB=03))
	$(REPORT) execute $(NOTEBOOK) build/$(PRESET)/$(notdir $(NOTEBOOK)) -p PRESET $(PRESET)
	$(REPORT) html build/$(PRESET) notebooks
	@echo "open build/$(PRESET)/html/$(basename $(notdir $(NOTEBOOK))).html"

test: .venv/.stamp    ## run the tests
	$(PY) -m pytest $(TESTS)

test-oldest: .venv-oldest/.stamp    ## run the tests with the oldest dependencies pyproject.toml admits
	$(OLDEST) -m pytest $(TESTS)

# Every network and kernel that this CPU would not run by itself, compiled as for an older one.
ISA_TESTS := tests/test_activations.py tests/test_fused.py tests/test_wavefront.py tests/test_versions.py \
	-k "not cuda and not sequential \
	and not numpy and not numba-sample and not float64 and not stress and not interrupt and not ctrl_c \
	and not every_address and not process and not forked"

test-isa: .venv/.stamp    ## run the kernels' tests with AVX2 forced, and with SSE2
	$(PY) -m lstm_kernels.bench.isa AVX2 $(PY) -m pytest $(ISA_TESTS)
	$(PY) -m lstm_kernels.bench.isa SSE2 $(PY) -m pytest $(ISA_TESTS)

# What users' machines do to a network and to files: threads, forks, signals, interrupts at every
# line, damaged files, random calls; and every float32. HOSTILE="-k fork" takes a part of it.
HOSTILE_TESTS := tests/test_in_use.py tests/test_files.py tests/test_machine.py \
	tests/test_activations.py

test-hostile: .venv/.stamp    ## run the tests of a package in use for longer, with each kind of Numba threads
	LSTM_KERNELS_HOSTILE=1 $(PY) -m pytest $(HOSTILE_TESTS) $(HOSTILE)
	NUMBA_THREADING_LAYER=workqueue $(PY) -m pytest tests/test_in_use.py -k "fork or thread"

test-newest: .venv-newest/.stamp    ## run the tests on the newest Python of this machine
	$(NEWEST) -m pytest $(TESTS)

# Without numba-cuda, which holds NumPy back: what `pip install lstm-kernels` brings today.
test-releases: .venv-releases/.stamp    ## run them there with the newest releases instead of the lock
	$(RELEASES) $(PIP_INSTALL) --upgrade --upgrade-strategy eager --editable '.[dev]'
	$(RELEASES) -m pytest $(TESTS)

test-arm:    ## run the kernels' tests on an emulated ARM CPU (Debian, QEMU); ARGS="-k gru" for pytest
	tools/test_arm.sh $(ARGS)

bench: .venv/.stamp    ## measure this machine: every version that can run here
	$(PY) -m lstm_kernels bench

bench-peers: .venv-peers/.stamp    ## measure beside PyTorch, JAX and ONNX Runtime
	$(PEERS) -m lstm_kernels bench-peers

bench-isa: .venv-peers/.stamp    ## measure beside PyTorch and BLAS, all restricted to AVX-512, AVX2, SSE2
	$(PEERS) -m lstm_kernels bench-isa

gpu:    ## verify and measure on this machine's GPU, with the packages of python3; FOLDER=to/write/to
	$(GPU_PYTHON) -m lstm_kernels gpu $(if $(FOLDER),--folder "$(FOLDER)")

ptx: .venv/.stamp    ## compile the GPU kernels without a GPU, record their registers
	$(PY) tools/ptx.py

readme: .venv/.stamp    ## renew what README.md shows of notebook 00 and of data/results/
	$(PY) tools/readme.py

accept: .venv/.stamp    ## take what `make report` made over into notebooks/, figures/ and README.md
	$(REPORT) accept build/paper notebooks

lint: .venv/.stamp    ## check style and format
	$(PY) -m ruff check $(CHECKED)
	$(PY) -m ruff format --check $(CHECKED)

format: .venv/.stamp    ## repair style and format
	$(PY) -m ruff check --fix $(CHECKED)
	$(PY) -m ruff format $(CHECKED)

lock:    ## renew requirements.lock from pyproject.toml
	$(call environment,build/lock)
	build/lock/bin/python $(PIP_INSTALL) uv
	build/lock/bin/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes \
		--no-emit-find-links --extra dev --extra mpi --extra ptx --custom-compile-command "make lock" \
		--output-file build/lock/requirements.lock pyproject.toml
	mv build/lock/requirements.lock $@.part && mv $@.part requirements.lock

clean:    ## remove build/ and caches; the environments stay
	rm -rf build .pytest_cache .ruff_cache
	find lstm_kernels tests tools notebooks \( -name __pycache__ -o -name .ipynb_checkpoints \) \
		-prune -exec rm -rf {} + 2>/dev/null || true

# A notebook that fails stops the build; the next call goes on from it.
# The environment is order-only: installing it again does not make results old.
build/paper/%.ipynb: notebooks/%.ipynb $(SOURCES) | .venv/.stamp
	$(REPORT) execute $< $@

build/smoke/%.ipynb: notebooks/%.ipynb $(SOURCES) | .venv/.stamp
	$(REPORT) execute $< $@ -p PRESET smoke

build/paper/html/index.html: $(PAPER) $(wildcard tools/report.py tools/notebook_*.py tools/page/*) | .venv/.stamp
	$(REPORT) html build/paper notebooks

build/smoke/html/index.html: $(SMOKE) $(wildcard tools/report.py tools/notebook_*.py tools/page/*) | .venv/.stamp
	$(REPORT) html build/smoke notebooks

# $(call environment,FOLDER[,PYTHON]): says what is missing instead of leaving half an environment.
define environment
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "$(PYTHON) is older than 3.11 or missing: install Python 3.11 or newer, or name it: make PYTHON=python3.12" >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || \
		{ echo "$(PYTHON) cannot make virtual environments: install python3-venv (apt-get install python3-venv)" >&2; exit 1; }
	$(or $(2),$(PYTHON)) -m venv $(1)
endef

PIP_INSTALL := -m pip install --quiet --disable-pip-version-check

.venv/.stamp: requirements.lock pyproject.toml
	$(call environment,.venv)
	$(PY) $(PIP_INSTALL) --require-hashes -r requirements.lock
	$(PY) $(PIP_INSTALL) --no-deps --no-build-isolation --editable .
	touch $@

# What the package and the report need, at its lower bounds; then the tools of the tests, whose
# releases are not what is tested.
.venv-oldest/.stamp: pyproject.toml
	$(call environment,.venv-oldest)
	$(OLDEST) $(PIP_INSTALL) uv
	.venv-oldest/bin/uv pip install --quiet --python $(OLDEST) --resolution lowest-direct \
		--editable '.[report]'
	$(OLDEST) $(PIP_INSTALL) --editable '.[dev]'
	touch $@

# Both are made anew, since a newer Python may have come.
.venv-newest/.stamp: requirements.lock pyproject.toml
	rm -rf .venv-newest
	$(call environment,.venv-newest,$(NEWEST_PYTHON))
	$(NEWEST) $(PIP_INSTALL) --require-hashes -r requirements.lock
	$(NEWEST) $(PIP_INSTALL) --no-deps --no-build-isolation --editable .
	touch $@

.venv-releases/.stamp: pyproject.toml
	rm -rf .venv-releases
	$(call environment,.venv-releases,$(NEWEST_PYTHON))
	touch $@

# A CPU build of PyTorch is all that is needed, and all that this version's wheel may bring.
.venv-peers/.stamp: requirements.lock pyproject.toml
	$(call environment,.venv-peers)
	$(PEERS) $(PIP_INSTALL) --require-hashes -r requirements.lock
	$(PEERS) $(PIP_INSTALL) torch==2.13.0 jax onnxruntime onnx
	$(PEERS) $(PIP_INSTALL) --no-deps --no-build-isolation --editable .
	touch $@
