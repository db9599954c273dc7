# Each target makes the environment it needs; `make` alone lists them.

VERSIONS := 3.13 3.12 3.11
COLAB_VERSIONS := 3.12 3.13
GIVEN := $(PYTHON)
PYTHON ?= $(or $(call find,$(VERSIONS)),python3)
PORT ?= 8000
BIN := $(if $(filter Windows_NT,$(OS)),Scripts,bin)
RUN := .venv/$(BIN)/python
COLAB := .venv-colab/$(BIN)/python
unexport PYTHONDONTWRITEBYTECODE  # else each of many processes compiles all it imports

# The first Python of some versions that runs: from the PATH, or pyenv's.
find = $(shell for python in $(addprefix python,$(1)) python3 \
	$(wildcard $(patsubst %,$(HOME)/.pyenv/versions/%.*/bin/python,$(1))); do \
	$$python -c 'import sys; sys.exit("%d.%d" % sys.version_info[:2] not in "$(1)".split())' \
	2>/dev/null && echo $$python && break; done)

.DEFAULT_GOAL := help
.PHONY: help book test test-colab draft serve pdf exercises data benchmark check-gpu sync lock clean environment

help:  ## this list
	@sed -n 's/^\([a-z-]*\):.*## /\1: /p' $(MAKEFILE_LIST) | awk -F': ' '{name = $$1; sub(/^[^:]*: /, ""); printf "  make %-13s %s\n", name, $$0}'

book: environment  ## execute every page and write _build/html/index.html
	@$(RUN) tools/build_book.py

# A command; its seconds are added to the last line of `make test`.
timed = began=$$(date +%s); $(2) && echo "$(1) $$(($$(date +%s) - began)) s" >> _build/times

test:  ## lint, every page (executed if it changed), tests, also of the built book in a browser
	@mkdir -p _build && rm -f _build/times
	@$(call timed,environment,$(MAKE) -s environment)
	$(RUN) -m ruff check .
	$(RUN) -m ruff format --check .
	@$(RUN) tools/build_book.py --if-stale --times _build/times
	@$(call timed,tests,$(RUN) -m pytest -n 2 --no-loadscope-reorder --durations=20 tests)
	@echo "make test: $$(paste -sd , _build/times | sed 's/,/, /g')"

test-colab: .venv-colab/complete  ## every page with the versions that Colab has these days (PAGES=… for some)
	$(COLAB) -m pytest -n 2 --nbmake --nbmake-timeout=1800 --durations=0 $(or $(PAGES),notebooks)

draft: environment  ## the book in _draft; syncs, executes only the pages that changed
	@$(RUN) tools/sync.py
	@$(RUN) tools/build_book.py --draft

serve: environment  ## show the built book on http://localhost:8000 (PORT=… for another)
	@$(RUN) tools/build_book.py --if-stale
	@$(RUN) tools/serve.py $(PORT)

pdf: environment  ## print the built book to _build/pdf, one file for each framework
	@$(RUN) tools/build_book.py --if-stale
	@$(RUN) tools/pdf.py

exercises: environment  ## the pages as notebooks with blanks, to write the code yourself (ARGS=FOLDER)
	@$(RUN) tools/blank.py $(or $(ARGS),exercises)

data: environment  ## photos (PHOTOS=cifar100, cifar10, a folder) or weights (MODEL=openai-community/gpt2)
	@$(RUN) tools/data.py $(ARGS)

benchmark: environment  ## time training and generation against the usual ways (ARGS="--help")
	@$(RUN) -m benchmarks.run $(ARGS)

check-gpu:  ## every page, the unit tests and the benchmark on the GPU (PYTHON=… to choose)
	@$(firstword $(GIVEN) $(wildcard $(RUN)) python3) tools/check_gpu.py $(ARGS)

sync: environment  ## write the .ipynb of every page from its .py
	@$(RUN) tools/sync.py

lock: environment  ## make the files requirements/lock*.txt anew
	@$(RUN) tools/lock.py

clean:  ## remove everything that was built, but not the environments
	rm -rf _build _draft .pytest_cache .hypothesis .ruff_cache

environment: .venv/complete

# The stamp is written last, so an interrupted installation is begun anew.
.venv/complete: requirements/lock.txt requirements/lock-cuda.txt
	@found=$$($(PYTHON) -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null); \
	case " $(VERSIONS) " in *" $$found "*) ;; *) \
	echo "The book needs Python 3.11, 3.12 or 3.13, but $(PYTHON) is $${found:-not there}: install one, or name it with make PYTHON=/path/to/python." >&2; exit 1;; esac
	@$(PYTHON) -c 'import ensurepip' 2>/dev/null || { \
	echo "$(PYTHON) cannot make virtual environments: install its venv package, on Debian and Ubuntu with apt install python3-venv." >&2; exit 1; }
	@echo "Making .venv; the first time takes some minutes and 7 GB."
	@rm -rf .venv
	@$(PYTHON) -m venv .venv
	@$(RUN) -m pip install --quiet --disable-pip-version-check $$(grep -o '^uv==[^ ]*' requirements/lock.txt)
	@locks="-r requirements/lock.txt"; \
	driver=$$(nvidia-smi --query-gpu=driver_version --format=csv,noheader 2>/dev/null | head -n 1); \
	if [ "$$(uname)" = Linux ] && [ "0$${driver%%.*}" -ge 580 ]; then locks="$$locks -r requirements/lock-cuda.txt"; fi; \
	$(RUN) -m uv pip install --python $(RUN) $$locks || $(RUN) -m pip install $$locks
	@touch $@

# uv downloads a Python for Colab's versions where the machine has none.
.venv-colab/complete: requirements/lock-colab.txt | environment
	@rm -rf .venv-colab
	@$(RUN) -m uv venv --python $(or $(call find,$(COLAB_VERSIONS)),3.12) .venv-colab
	@$(RUN) -m uv pip install --python $(COLAB) -r requirements/lock-colab.txt
	@touch $@
