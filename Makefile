# The two commands that the README names, and what a developer runs besides.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/installed.stamp

.PHONY: demo test test-page check lock clean

demo: $(STAMP)
	$(BIN)/resperf demo

test: $(STAMP) check
	$(BIN)/python -m pytest -q --numprocesses 2 --dist loadfile

# Tests of the page in Chromium, which comes from apt where there is one; skipped where there is none.
test-page: $(STAMP)
	command -v chromium || timeout 300 sh -c 'apt-get update && apt-get install -y chromium' > /dev/null || true
	$(BIN)/python -m pytest -q -rs tests/serve/test_page.py

check: $(STAMP)
	tools/check

$(STAMP): requirements-dev.lock pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --requirement requirements-dev.lock
	$(BIN)/python -m pip install --quiet --no-deps --editable .
	touch $@

# Needs uv on the path; pins every dependency for all supported Python versions. Extras that need a
# GPU, or that replace a package of another extra, are not in it.
lock:
	uv pip compile pyproject.toml --extra all --extra torch --extra cuda --extra tensorrt-rtx --extra ray --group dev --universal --python-version 3.11 \
	  --output-file requirements-dev.lock

clean:
	rm -rf $(VENV)
