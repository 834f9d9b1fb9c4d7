# Bare `make` lists the targets. Needs python3 (3.11 or newer) and make, nothing else:
# .venv is set up on demand from requirements.lock.
PYTHON ?= python3
PY := .venv/bin/python
PEERS := .venv-peers/bin/python
GPU_PYTHON ?= $(PYTHON)
OLDEST := .venv-oldest/bin/python
# $(call newest,MINORS): the first of these Pythons that runs, also one of pyenv's, else $(PYTHON).
newest = $(or $(firstword $(foreach minor,$(1),$(foreach name,python3.$(minor) \
	$(wildcard $(PYENV_ROOT)/versions/3.$(minor).*/bin/python),$(shell $(name) -c \
	'import ensurepip, sys; print(sys.executable)' 2>/dev/null)))),$(PYTHON))
# Python 3.14 is the newest that Numba is built for. NEWEST_PYTHON=path takes another.
NEWEST_PYTHON = $(call newest,14 13 12)
RELEASES := .venv-releases/bin/python
# Of `make report`: what opens the notebooks of colab/ on the web, for links on the first page;
# in Colab https://colab.research.google.com/github/OWNER/NAME/blob/main/colab.
COLAB ?=
$(if $(filter-out http://% https://%,$(COLAB)),$(error COLAB: got '$(COLAB)', want an address))
# Of `make notebook`: paper, or smoke.
PRESET ?= paper
TESTS ?=    # what the test targets run, as pytest takes it; empty is every test
# How many tests run at once: most keep one core busy. Tests of one xdist_group never do.
WORKERS ?= 2
PYTEST := -m pytest --numprocesses $(WORKERS) --dist loadgroup

# Page 0 and the appendix tell what the other pages found, and come last.
LAST := $(wildcard notebooks/00_overview.ipynb notebooks/appendix.ipynb)
NOTEBOOKS := $(filter-out $(LAST),$(sort $(wildcard notebooks/*.ipynb))) $(LAST)
# What the numbers of a page follow from; folders tell of recorded results that are gone.
READ := $(shell find lstm_kernels lstm_report data -type f -not -path '*/__pycache__/*' 2>/dev/null) \
	$(shell find data -type d 2>/dev/null)
CHECKED := $(wildcard lstm_kernels lstm_report tests tools notebooks)

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.NOTPARALLEL:    # notebooks measure: two at once would disturb each other

.PHONY: help report smoke notebook colab test approve test-torch test-oldest test-isa test-hostile test-releases test-colab test-site test-arm bench bench-peers bench-ranks gpu ptx readme accept lint format lock clean

help:    ## list the targets
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / { printf "%-14s %s\n", $$1, $$2 }' Makefile

report: .venv/.stamp    ## execute the notebooks in full; pages to build/site/, claims and changes at the end
	@$(call build,paper,$(NOTEBOOKS))

smoke: .venv/.stamp    ## the same on small sizes, to build/smoke/site/
	@$(call build,smoke,$(NOTEBOOKS))

notebook: chosen .venv/.stamp    ## execute one notebook and make its page: NB=3, PRESET=smoke for small sizes
	@rm -f $(CHOSEN:notebooks/%=build/$(PRESET)/%)
	@$(call build,$(PRESET),$(CHOSEN))

# L, S and A are the letters of figures.
NAME := $(patsubst A,appendix,$(patsubst S,lab,$(patsubst L,lesson,$(NB))))
CHOSEN := $(if $(NAME),$(filter $(patsubst %,notebooks/%,$(NAME).ipynb $(NAME)_%.ipynb 0$(NAME)_%.ipynb),$(NOTEBOOKS)))

.PHONY: chosen    # before an environment is made
chosen:
	@$(if $(CHOSEN),,$(error NB: got '$(NB)', want the number or name of $(NOTEBOOKS:notebooks/%.ipynb=%)))
	@$(if $(filter paper smoke,$(PRESET)),,$(error PRESET: got '$(PRESET)', want paper or smoke))

colab:    ## every notebook as one file for Colab, Kaggle or an empty folder, to dist/
	$(new_enough)
	$(PYTHON) tools/standalone.py dist $(NOTEBOOKS) tools/gpu.ipynb

test: .venv/.stamp    ## run the tests
	$(PY) $(PYTEST) $(TESTS)

approve: .venv/.stamp    ## write the approved texts of the pages anew: read them as a diff
	LSTM_KERNELS_APPROVE=1 $(PY) -m pytest -q tests -k "test_text and test_page" && git diff --stat tests/approved

test-torch: .venv-peers/.stamp    ## run the tests of the layers for PyTorch
	$(PEERS) $(PYTEST) tests/test_torch.py

test-oldest: .venv-oldest/.stamp    ## run the tests with the oldest dependencies pyproject.toml admits
	$(OLDEST) $(PYTEST) $(TESTS)

# Every network and kernel that this CPU would not run by itself, compiled as for an older one.
ISA_TESTS := tests/test_activations.py tests/test_engine.py tests/test_versions.py \
	tests/test_switches.py \
	-k "not cuda and not sequential and not numpy and not numba-sample and not float64 \
	and not interrupt and not process"
SSE2 := +64bit,+cmov,+cx16,+fxsr,+sse,+sse2
AVX2 := $(SSE2),+sse3,+ssse3,+sse4.1,+sse4.2,+popcnt,+avx,+avx2,+fma,+bmi,+bmi2,+f16c,+lzcnt,+movbe

test-isa: .venv/.stamp    ## run the kernels' tests with AVX2 forced, and with SSE2
	$(call restricted,haswell,AVX2)
	$(call restricted,x86-64,SSE2)

# $(call restricted,CPU,SET): as Numba compiles for a CPU of that name with that set.
define restricted
	export NUMBA_CPU_NAME=$(1) NUMBA_CPU_FEATURES=$($(2)); \
	$(PY) -c 'from lstm_kernels.cpu.registers import vector_registers as registers; \
		assert registers().name == "$(2)", registers()' && \
	$(PY) $(PYTEST) $(ISA_TESTS) && \
	LSTM_KERNELS_ISA=1 $(PY) $(PYTEST) tests/test_assembly.py
endef

# What users' machines do to a network and to files: threads, forks, signals, interrupts at every
# line, damaged files, random calls; and every float32. HOSTILE="-k fork" takes a part of it.
HOSTILE_TESTS := tests/test_in_use.py tests/test_files.py tests/test_machine.py \
	tests/test_activations.py tests/test_gpu_cases.py tests/test_page_04_on_ptx.py

test-hostile: .venv/.stamp    ## run the tests of a package in use for longer, with each kind of Numba threads
	LSTM_KERNELS_HOSTILE=1 $(PY) $(PYTEST) -o faulthandler_timeout=1800 $(HOSTILE_TESTS) $(HOSTILE)
	NUMBA_THREADING_LAYER=workqueue $(PY) $(PYTEST) tests/test_in_use.py -k "fork or thread"

# Without numba-cuda, which holds NumPy back: what `pip install lstm-kernels` brings today.
test-releases: .venv-releases/.stamp    ## run the tests on the newest Python here with the newest releases
	$(RELEASES) $(PIP_INSTALL) --upgrade --upgrade-strategy eager --editable '.[dev]' $(OR_SAY)
	$(RELEASES) $(PYTEST) $(TESTS)

# In an empty folder, without a network, with the releases that Colab and Kaggle have.
test-colab: .venv/.stamp .venv-colab/.stamp .venv-kaggle/.stamp    ## execute colab/, and what `make colab` makes, as teachers would
	LSTM_KERNELS_KERNEL=.venv-colab/bin/python $(PY) $(PYTEST) tests/test_standalone.py
	LSTM_KERNELS_KERNEL=.venv-kaggle/bin/python $(PY) $(PYTEST) tests/test_standalone.py \
		-k empty_folder

# SITE=build/site tests the pages of `make report`.
SITE ?= build/smoke/site
test-site: build/axe/.stamp $(if $(filter build/smoke/site,$(SITE)),smoke)    ## test the site in Chromium: Debian's chromium, chromium-driver and npm
	LSTM_KERNELS_SITE=$(SITE) LSTM_KERNELS_AXE=build/axe/node_modules/axe-core/axe.min.js \
		$(PY) -m pytest tests/test_site.py

test-arm:    ## run the kernels' tests on an emulated ARM CPU (Debian, QEMU); ARGS="-k gru" for pytest
	tests/arm.sh $(ARGS)

bench: .venv/.stamp    ## measure this machine: every version that can run here
	$(PY) -m lstm_report bench

bench-peers: .venv-peers/.stamp    ## measure beside PyTorch, JAX and ONNX Runtime
	$(PEERS) -m lstm_report bench-peers

bench-ranks: .venv/.stamp    ## measure what page 08 shows of several processes (MPI)
	$(PY) -m lstm_report bench-ranks

gpu:    ## verify and measure on this machine's GPU, with the packages of python3; MINUTES=25 FOLDER=to/write/to
	$(GPU_PYTHON) -m lstm_report gpu $(if $(MINUTES),--minutes $(MINUTES)) $(if $(FOLDER),--folder "$(FOLDER)")

ptx: .venv/.stamp    ## compile the GPU kernels without a GPU, record their registers, execute them
	$(PY) tools/ptx.py
	$(PY) tools/gpu_cases.py record

readme: .venv/.stamp    ## renew the results that README.md shows
	$(PY) tools/accept.py

# For each page make knows itself whether it is out of date.
accept: .venv/.stamp    ## take what `make report` made over into notebooks/, figures/, colab/ and README.md
	@for page in $(NOTEBOOKS:notebooks/%=build/paper/%); do $(MAKE) --question $$page || \
		{ echo "nothing is accepted: $$page is not there, or older than what it reads" >&2; exit 1; }; done
	$(PY) tools/accept.py build/paper

lint: .venv/.stamp    ## check style, format and types
	$(PY) -m ruff check $(CHECKED)
	$(PY) -m ruff format --check $(CHECKED)
	$(PY) -m mypy

format: .venv/.stamp    ## repair style and format
	$(PY) -m ruff check --fix $(CHECKED)
	$(PY) -m ruff format $(CHECKED)

lock:    ## renew requirements.lock from pyproject.toml
	$(call environment,build/lock)
	build/lock/bin/python $(PIP_INSTALL) uv $(OR_SAY)
	build/lock/bin/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes \
		--no-emit-find-links --extra dev --extra mpi --extra ptx --custom-compile-command "make lock" \
		--output-file build/lock/requirements.lock pyproject.toml
	mv build/lock/requirements.lock $@.part && mv $@.part requirements.lock

clean:    ## remove build/ and caches; the environments stay
	rm -rf build dist .pytest_cache .ruff_cache
	find lstm_kernels lstm_report tests tools notebooks \( -name __pycache__ -o -name .ipynb_checkpoints \) \
		-prune -exec rm -rf {} + 2>/dev/null || true

# A page is up to date while it is newer than its notebook and all that is read.
build/paper/%.ipynb: notebooks/%.ipynb $(READ)
	@rm -f $@
	@$(PY) tools/execute.py $< $@ paper

build/smoke/%.ipynb: notebooks/%.ipynb $(READ)
	@rm -f $@
	@$(PY) tools/execute.py $< $@ smoke

# $(call build,PRESET,NOTEBOOKS): a notebook that fails does not stop the others, and what is up to
# date is not executed again, so that a call goes on after an interruption. The exit status tells
# of notebooks that failed; a claim that did not hold is a result.
define build
	site=$(if $(filter paper,$(1)),build/site,build/smoke/site) status=0; \
	rm -f $(filter-out $(NOTEBOOKS:notebooks/%=build/$(1)/%),$(wildcard build/$(1)/*.ipynb)); \
	$(MAKE) --silent --no-print-directory --keep-going $(2:notebooks/%=build/$(1)/%) || status=$$?; \
	echo "making the site" && $(PY) tools/website.py build/$(1) build/$(1)/source $(COLAB) && rm -rf $$site.part && \
	$(PY) -m sphinx -qEW --keep-going -c tools/page -d build/$(1)/trees build/$(1)/source $$site.part && \
	rm -rf $$site && mv $$site.part $$site || status=1; \
	$(PY) tools/summary.py build/$(1) $$site $(2); \
	if [ $$status = 0 ]; then echo "open $$site/index.html"; fi; exit $$status
endef

build/axe/.stamp: Makefile
	@for tool in chromium chromedriver npm; do command -v $$tool >/dev/null || \
		{ echo "$$tool is missing: install chromium, chromium-driver and npm" >&2; exit 1; }; done
	npm install --silent --no-save --prefix build/axe axe-core@4.14.1 $(OR_SAY)
	touch $@

define new_enough
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "$(PYTHON) is older than 3.11 or missing: install Python 3.11 or newer, or name it: make PYTHON=python3.12" >&2; exit 1; }
endef

# GB of an environment, with what pip keeps and what Numba compiles.
SPACE := 4

# $(call environment,FOLDER[,PYTHON]): says what is missing instead of leaving half an environment.
define environment
	$(new_enough)
	@$(if $(wildcard $(1)/bin),,$(PYTHON) -c 'import shutil, sys; free = shutil.disk_usage(".").free / 1e9; \
		sys.exit(f"$(1): got {free:.1f} GB free in this folder, want $(SPACE)" if free < $(SPACE) else 0)')
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || \
		{ echo "$(PYTHON) cannot make virtual environments: install python3-venv (apt-get install python3-venv)" >&2; exit 1; }
	$(or $(2),$(PYTHON)) -m venv $(1)
endef

PIP_INSTALL := -m pip install --quiet --disable-pip-version-check
# pip tells of a package, not of what all of them want.
OR_SAY := || ! echo "packages could not be installed: no network, or no space left?" >&2

.venv/.stamp: requirements.lock pyproject.toml
	$(call environment,.venv)
	$(PY) $(PIP_INSTALL) --require-hashes -r requirements.lock $(OR_SAY)
	$(PY) $(PIP_INSTALL) --no-deps --no-build-isolation --editable .
	touch $@

# What the package and the report need, at its lower bounds; then the tools of the tests, whose
# releases are not what is tested.
.venv-oldest/.stamp: pyproject.toml
	$(call environment,.venv-oldest)
	$(OLDEST) $(PIP_INSTALL) uv $(OR_SAY)
	.venv-oldest/bin/uv pip install --quiet --python $(OLDEST) --resolution lowest-direct \
		--editable '.[report]' $(OR_SAY)
	$(OLDEST) $(PIP_INSTALL) --editable '.[dev]' $(OR_SAY)
	touch $@

# Made anew, since a newer Python may have come.
.venv-releases/.stamp: pyproject.toml
	rm -rf .venv-releases
	$(call environment,.venv-releases,$(NEWEST_PYTHON))
	touch $@

# What the platforms have, and nothing of this project.
.venv-colab/.stamp: tools/colab.txt
	$(call environment,.venv-colab,$(call newest,13 12))
	.venv-colab/bin/python $(PIP_INSTALL) --requirement $< $(OR_SAY)
	touch $@

.venv-kaggle/.stamp: tools/kaggle.txt
	$(call environment,.venv-kaggle,$(call newest,12 11))
	.venv-kaggle/bin/python $(PIP_INSTALL) --requirement $< $(OR_SAY)
	touch $@

# A CPU build of PyTorch is all that is needed, and all that this version's wheel may bring.
.venv-peers/.stamp: requirements.lock pyproject.toml
	$(call environment,.venv-peers)
	$(PEERS) $(PIP_INSTALL) --require-hashes -r requirements.lock $(OR_SAY)
	$(PEERS) $(PIP_INSTALL) torch==2.13.0 jax onnxruntime onnx $(OR_SAY)
	$(PEERS) $(PIP_INSTALL) --no-deps --no-build-isolation --editable .
	touch $@
