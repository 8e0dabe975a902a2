# Everything a person or a CI machine runs. `make test` and `make demo` set up what they need in .venv.
PYTHON ?= python3.11
VENV := .venv
SHELL := /bin/bash
BIN := $(VENV)/bin
# The tests start hundreds of processes. Each would compile our modules again where the environment has this set.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: setup test fast-tests quick slow one lint demo drill-kinds bench-exact bench-passes bench-starts bench-survivors bench-padding bench-shuffling bench-checkpoint bench-prepare bench-tokenising bench-audit bench-long bench-fifty bench-predict bench-loader bench-goodput bench-finetune gpu scaling campaign operate clean

setup: $(VENV)/.installed

# pip and not another installer: torch==2.13.0 is then the CPU build where only that is to be had, without CUDA packages.
# Not Python 3.11's own one, whose search for what is to be installed takes longer: time `pip install --dry-run` of both.
# It would compile modules to bytecode on one core; some packages have files that are no Python, which is why that line
# may fail. More than half of what the packages have is tests of theirs, or never loaded here: it is left out, each
# megabyte takes half a second. Of moto S3 is loaded, and what that needs; pytest compiles Hypothesis by itself.
NOT_LOADED := tests?|testing|_vendor|pip|setuptools|kubernetes|networkx|altair|apprise|hypothesis|tensorboard|dateparser
NOT_LOADED := $(NOT_LOADED)|mypyc?|fontTools|lexers|_inductor|transformers/(models|pipelines|exporters)|scipy/signal
NOT_LOADED := $(NOT_LOADED)|moto/(?!core|s3|iam|events|cloudwatch|sts|moto_|utilities)\w+|huggingface_hub/(cli|inference)
NOT_LOADED := $(NOT_LOADED)|sympy/(physics|stats|combinatorics|parsing|tensor)|dask/(array|dataframe)|numpy/distutils
NOT_LOADED := $(NOT_LOADED)|onnxruntime/(transformers|quantization|tools)|onnx/reference|duckdb/experimental
$(VENV)/.installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --upgrade pip
	$(BIN)/python -m pip install --quiet --no-compile --constraint constraints.txt --editable '.[dev]'
	$(BIN)/python -m compileall -qq -j 0 -x '/($(NOT_LOADED))/' $(VENV)/lib || true
	touch $@

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# ruff and mypy run beside the tests, and these WORKERS files at a time: most tests wait for processes that they have
# started. The order stays as tests/conftest.py makes it, with the longest first. A worker that died is not replaced:
# xdist would give the new one the file that killed it, again and again.
WORKERS ?= 4
test: setup
	$(MAKE) --jobs=2 lint fast-tests

fast-tests: setup
	$(BIN)/python -m pytest -n $(WORKERS) --dist loadfile --no-loadscope-reorder --max-worker-restart 0 --durations 25 -m "not slow"

# The unit tests alone: they need nothing but files.
quick: setup
	$(BIN)/python -m pytest tests/unit -n 2 --dist loadfile

# What `make test` leaves out: minutes for one option. Before a release, with the campaign.
slow: setup
	$(BIN)/python -m pytest -m slow

# One test, by a file, by `file::test`, or by a part of its name: `make one T=tests/unit/storage/test_ledger.py`, `make one
# T=flipped_byte`.
one: setup
	@test -n "$(T)" || { echo "make one T=... expects a file of tests, file::test, or a part of a test's name." >&2; exit 2; }
	$(BIN)/python -m pytest $(if $(findstring /,$(T)),"$(T)",-k "$(T)")

# The product alone is set up for it, where the tests have not set up more.
demo: $(if $(wildcard $(VENV)/.installed),$(VENV)/.installed,$(VENV)/.product)
	$(BIN)/python -m flows.demo

$(VENV)/.product: pyproject.toml constraints.txt
	@echo "Holdfast and its libraries are installed into $(VENV), most of a gigabyte of them torch. Minutes, once."
	$(PYTHON) -m venv $(VENV)
	@set -o pipefail; $(BIN)/python -m pip install --no-compile --constraint constraints.txt --editable . | awk \
		'/^Collecting/ { printf "\r\033[K%d libraries found, now %s", ++found, $$2; fflush() } \
		/^Installing collected/ { printf "\r\033[K%d libraries found; they are put in place now ...\n", found; fflush() }'
	touch $@

# A few minutes; what it measures stands in training/gradients/README.md.
bench-exact: setup
	$(BIN)/python -m tests.benchmarks.bench_exact

# Three minutes; training/agents/README.md says what it measures.
bench-starts: setup
	$(BIN)/python -m tests.benchmarks.bench_starts

# Some minutes; KILLS=10 is a short try, NODES=2 has the ranks on two nodes. training/agents/README.md says what it
# measures.
bench-survivors: setup
	$(BIN)/python -m tests.benchmarks.bench_survivors $(if $(NODES),--nodes $(NODES)) $(if $(KILLS),--kills $(KILLS)) $(if $(EVERY),--every $(EVERY)) $(if $(PICTURE),--picture $(PICTURE))

# Half a minute: what the exact sum and AdamW take of a processor core; the figures stand in training/gradients/README.md.
bench-passes: setup
	$(BIN)/python -m tests.benchmarks.gpu.passes cpu

# A quarter of an hour, most of it for times of steps; what it measures stands in training/batches/README.md.
bench-padding: setup
	$(BIN)/python -m tests.benchmarks.bench_padding

# Half a minute; nothing is timed. The figures stand in training/data/README.md.
bench-shuffling: setup
	$(BIN)/python -m tests.benchmarks.bench_shuffling

# Ten minutes, 16 GB of memory, 15 GB of disk; what it measures stands in training/checkpointing/README.md.
bench-checkpoint: setup
	$(BIN)/python -m tests.benchmarks.bench_checkpoint

# ROWS="100000 42000000" measures these; what it measures stands in tasks/data/units/README.md.
bench-prepare: setup
	$(BIN)/python -m tests.benchmarks.bench_prepare $(if $(ROWS),--rows $(ROWS))

# What it measures stands in tasks/data/units/README.md.
bench-tokenising: setup
	$(BIN)/python -m tests.benchmarks.bench_tokenising

# Quarter of an hour on an idle machine, 1.5 GB where TMPDIR is. OPTIONS='--stores folder --steps 20000 --promotions 200'
# is a small one; what it measures stands in storage/runs/README.md.
bench-long: setup
	$(BIN)/python -m tests.benchmarks.bench_long $(OPTIONS)

# Twenty minutes on an idle machine, and PostgreSQL; RUNS=5 SECONDS=120 is a short try. What it measures stands in
# deployments/operation.md.
bench-fifty: setup
	$(BIN)/python -m tests.benchmarks.bench_fifty_runs $(if $(RUNS),--runs $(RUNS)) $(if $(SECONDS),--seconds $(SECONDS)) $(OPTIONS)

# Two minutes; ROWS="100000 1000000 42000000" measures these, and takes 4 GB of disk and half an hour. What it measures
# stands in tasks/audits/README.md.
bench-audit: setup
	$(BIN)/python -m tests.benchmarks.bench_audit $(if $(ROWS),--rows $(ROWS))

# Some minutes on an idle machine; what it measures stands in training/export/README.md.
bench-predict: setup
	$(BIN)/python -m tests.benchmarks.bench_predict

# MODEL=FOLDER of a pretrained model, DATA=FILE; what else there is, as columns and rows, in OPTIONS='--label category
# --rows 0': --help says it. On a CPU some minutes for each seed.
bench-finetune: setup
	$(BIN)/python -m pip install --quiet --constraint constraints.txt accelerate scikit-learn
	$(BIN)/python -m tests.benchmarks.bench_finetune --model "$(MODEL)" --data "$(DATA)" $(OPTIONS)

# Ten minutes, and Ceph on this machine; the loaders that it compares with go into build/peers, 2 GB, the first time.
# HASHES=1: only what the hashes of row groups cost, without all that.
# What it measures stands in training/data/README.md.
bench-loader: setup
	$(BIN)/python -m tests.benchmarks.bench_loader $(if $(HASHES),--hashes)

# KILLS=2 is a short try. How a day is made short stands in the file; what the parts mean, in deployments/spot.md.
bench-goodput: setup
	$(BIN)/python -m tests.benchmarks.bench_goodput $(if $(KILLS),--kills $(KILLS))

# On a machine with a GPU, ten minutes; PROBE_DEVICE=cpu tries it where there is none. The last lines are a table; the
# figures stand in training/README.md. SECONDS=460 bounds it; what was not asked by then is said.
gpu: setup
	$(BIN)/python -m tests.benchmarks.bench_gpu $(if $(SECONDS),--seconds $(SECONDS))

# Twenty-five minutes, as root on Linux; what it measures stands in deployments/scaling.md.
scaling: setup
	$(BIN)/python -m tests.benchmarks.bench_scaling

# Every fault of the campaign; the table and what the runs left go to the folder OUT. `make campaign ONLY=bucket` does
# those with this in their name.
OUT ?= campaign
campaign: setup
	$(BIN)/python -m tests.faults.campaign --out $(OUT) $(if $(ONLY),--only "$(ONLY)")

# Minutes for each row, as root on Linux, with PostgreSQL and Ceph: a server, workers and stores as in production, and what people
# see when each of them fails. The table and all logs go to the folder OPERATED; ONLY="killed_machine" tries these rows.
OPERATED ?= operated
operate: setup
	$(BIN)/python -m tests.operating --out $(OPERATED) $(if $(ONLY),--only $(ONLY))

# `holdfast drill` of each kind of model, target and optimizer: half an hour. `make drill-kinds ONLY=LoRA`;
# OPTIONS="--device cuda" drills them on one GPU.
drill-kinds: setup
	$(BIN)/python -m tests.faults.drill_kinds $(if $(ONLY),--only "$(ONLY)") $(OPTIONS)

clean:
	rm -rf $(VENV) build dist demo campaign operated *.egg-info
