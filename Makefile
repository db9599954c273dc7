# Each target makes the environment it needs; `make` alone lists them.

PORT ?= 8000
BIN := $(if $(filter Windows_NT,$(OS)),Scripts,bin)
RUN := .venv/$(BIN)/python
COLAB := .venv-colab/$(BIN)/python
# The first Python of these versions that runs: from the PATH, or pyenv's.
find = $(shell for python in $(addprefix python,$(1)) python3 $(wildcard $(1:%=$(HOME)/.pyenv/versions/%.*/bin/python)); do \
	$$python -c 'import sys; sys.exit("%d.%d" % sys.version_info[:2] not in "$(1)".split())' 2>/dev/null && echo $$python && break; done)
PYTHON ?= $(call find,3.13 3.12 3.11)
unexport PYTHONDONTWRITEBYTECODE  # else each of many processes compiles all it imports
.DEFAULT_GOAL := help
.PHONY: help book test test-colab draft sync serve exercises data benchmark lock check-gpu clean environment

help:  ## this list
	@sed -n 's/^\([a-z-]*\):.*## /\1: /p' $(MAKEFILE_LIST) | awk -F': ' '{name = $$1; sub(/^[^:]*: /, ""); printf "  make %-13s %s\n", name, $$0}'

book: environment  ## execute every page and write _build/html/index.html
	@$(RUN) tools/build_book.py

test: environment  ## lint, every page (executed if it changed), tests, also of the built book in a browser
	$(RUN) -m ruff check .
	$(RUN) -m ruff format --check .
	@$(RUN) tools/build_book.py --changed
	$(RUN) -m pytest -n 2 --dist loadfile --durations=20 tests

test-colab: .venv-colab/complete  ## every page with the versions that Colab has these days (PAGES=… for some)
	$(COLAB) -m pytest -n 2 --nbmake --nbmake-timeout=1800 --durations=0 $(or $(PAGES),notebooks)

draft: sync  ## the book again, while you write: executes only the pages that changed
	@$(RUN) tools/build_book.py --changed

sync: environment  ## write the .ipynb of every page from its .py
	@$(RUN) tools/sync.py

serve: environment  ## show the built book on http://localhost:8000 (PORT=… for another)
	@$(RUN) tools/build_book.py --changed
	@$(RUN) -m http.server --directory _build/html --bind localhost $(PORT)

exercises: environment  ## the pages as notebooks with blanks, to write the code yourself (ARGS=FOLDER)
	@$(RUN) tools/blank.py $(or $(ARGS),exercises)

data: environment  ## photos (PHOTOS=cifar100, cifar10, a folder) or weights (MODEL=openai-community/gpt2)
	@$(RUN) tools/data.py $(ARGS)

benchmark: environment  ## time training and generation against the usual ways (ARGS="--help")
	@$(RUN) -m benchmarks.run $(ARGS)

check-gpu:  ## every page, the tests without the book, the benchmark on a GPU (RUN=python3 for another Python)
check-gpu: export XLA_PYTHON_CLIENT_PREALLOCATE = false
check-gpu: export XLA_FLAGS =
check-gpu: export TQDM_DISABLE = 1
check-gpu:
	$(RUN) -c 'import jax, torch; assert jax.default_backend() == "gpu" and torch.cuda.is_available()'
	cd notebooks && for page in *.py; do echo $$page && $(RUN:.venv/%=../.venv/%) $$page >/dev/null || exit 1; done
	$(RUN) -m pytest -m "not book" tests
	$(RUN) -m benchmarks.run

lock:  ## make the files requirements/lock*.txt anew
lock: LOCK = cd requirements && ../$(RUN) -m uv pip compile --universal --upgrade --quiet --no-annotate --custom-compile-command "make lock"
lock: environment
	$(LOCK) --python-version 3.11 dev.txt -o lock.txt
	$(LOCK) --python-version 3.11 cuda.txt -o lock-cuda.txt
	$(LOCK) --python-version 3.12 colab.txt -o lock-colab.txt

clean:  ## remove everything that was built, but not the environments
	rm -rf _build .pytest_cache .hypothesis .ruff_cache

environment: .venv/complete

# The stamp is written last, so an interrupted installation is begun anew.
.venv/complete: requirements/lock.txt requirements/lock-cuda.txt
	@"$(or $(PYTHON),false)" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 14))' || { \
	echo "The book needs Python 3.11, 3.12 or 3.13: install one, or name it with make PYTHON=/path/to/python." >&2; exit 1; }
	@"$(PYTHON)" -c 'import ensurepip' 2>/dev/null || { \
	echo "$(PYTHON) cannot make virtual environments: on Debian and Ubuntu, apt install python3-venv." >&2; exit 1; }
	@echo "Making .venv; the first time takes some minutes and 7 GB."
	@rm -rf .venv && "$(PYTHON)" -m venv .venv
	@$(RUN) -m pip install --quiet --disable-pip-version-check $$(grep -o '^uv==[^ ]*' requirements/lock.txt)
	@driver=$$(nvidia-smi --query-gpu=driver_version --format=csv,noheader 2>/dev/null | head -n 1); \
	cuda=$$(test "$$(uname)" = Linux -a "0$${driver%%.*}" -ge 580 && echo "-r requirements/lock-cuda.txt"); \
	$(RUN) -m uv pip install --python $(RUN) -r requirements/lock.txt $$cuda || $(RUN) -m pip install -r requirements/lock.txt $$cuda
	@touch $@

# uv downloads a Python for Colab's versions where the machine has none.
.venv-colab/complete: requirements/lock-colab.txt | environment
	@rm -rf .venv-colab && $(RUN) -m uv venv --python $(or $(call find,3.12 3.13),3.12) .venv-colab
	@$(RUN) -m uv pip install --python $(COLAB) -r requirements/lock-colab.txt
	@touch $@
