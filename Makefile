# Each target makes the environment it needs; `make` alone lists them.

PYTHON ?= $(shell sh tools/find-python.sh 3.13 3.12 3.11)
COLAB_PYTHON ?= $(shell sh tools/find-python.sh 3.12 3.13)
PORT ?= 8000
BIN := $(if $(filter Windows_NT,$(OS)),Scripts,bin)
RUN := .venv/$(BIN)/python
COLAB := .venv-colab/$(BIN)/python
CUDA := .venv-cuda/$(BIN)/python
unexport PYTHONDONTWRITEBYTECODE  # else each of many processes compiles all it imports
NO_PYTHON = no Python was found; the book needs Python 3.11, 3.12 or 3.13

.DEFAULT_GOAL := help
.PHONY: help book test test-colab draft serve pdf data benchmark sync new-chapter lock fork check-cuda clean environment

help:  ## this list
	@sed -n 's/^\([a-z-]*\):.*## /\1: /p' $(MAKEFILE_LIST) | awk -F': ' '{name = $$1; sub(/^[^:]*: /, ""); printf "  make %-13s %s\n", name, $$0}'

book: environment  ## execute every page and write _build/html/index.html
	@$(RUN) tools/build_book.py

test: environment  ## lint, unit tests, every page, and the built book in a real browser
	$(RUN) -m ruff check .
	$(RUN) -m ruff format --check .
	$(RUN) -m pytest -n 2 --dist loadfile --no-loadscope-reorder -m "not book" tests
	$(RUN) -m pytest -n 2 --nbmake --nbmake-timeout=1800 notebooks
	$(RUN) tools/build_book.py --if-stale
	$(RUN) -m pytest -m book tests

test-colab:  ## every page with the versions that Colab has these days
	@$(or $(COLAB_PYTHON),$(error $(NO_PYTHON))) tools/environment.py --folder .venv-colab --lock requirements/lock-colab.txt --python 3.12 3.13
	$(COLAB) -m pytest --nbmake --nbmake-timeout=1800 notebooks

draft: environment  ## the book in _draft; executes only the pages that changed
	@$(RUN) tools/build_book.py --draft

serve: environment  ## show the built book on http://localhost:8000 (PORT=… for another)
	@$(RUN) tools/build_book.py --if-stale
	@$(RUN) tools/serve.py $(PORT)

pdf: environment  ## print the built book to _build/pdf, one file for each framework
	@$(RUN) tools/build_book.py --if-stale
	@$(RUN) tools/pdf.py

data: environment  ## the photos of CIFAR-100 and their features, for the anomaly pages
	@$(RUN) tools/data.py $(ARGS)

benchmark: environment  ## time the trainings against the usual ways (ARGS="--help")
	@$(RUN) -m benchmarks.run $(ARGS)

sync: environment  ## write the .ipynb of every page from its .py
	@$(RUN) tools/sync.py

new-chapter: environment  ## NAME=… TITLE="…": two pages to begin a chapter with
	@$(RUN) tools/new_chapter.py

lock: environment  ## make the files requirements/lock*.txt anew
	@$(RUN) tools/lock.py

fork: environment  ## REPOSITORY=https://…: make every copy of the address point there
	@$(RUN) tools/fork.py $(REPOSITORY)

check-cuda:  ## JAX's CUDA build beside PyTorch's, installed and imported; needs no GPU
	@$(or $(PYTHON),$(error $(NO_PYTHON))) tools/environment.py --folder .venv-cuda --cuda yes
	$(CUDA) tools/check_cuda.py

clean:  ## remove everything that was built, but not the environments
	rm -rf _build _draft .pytest_cache .hypothesis .ruff_cache

environment:
	@$(or $(PYTHON),$(error $(NO_PYTHON))) tools/environment.py
