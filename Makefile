# cdc_lake: `make` prints what there is to do.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
# uv installs three times faster than pip; a mirror that pip is told of is passed on to it.
INDEX   = $(or $(UV_DEFAULT_INDEX),$(shell $(BIN)/python -m pip config get global.index-url 2>/dev/null))
INSTALL = $(if $(INDEX),UV_DEFAULT_INDEX=$(INDEX)) $(BIN)/uv pip install --quiet --python $(BIN)/python --constraint constraints.txt
# Three test processes side by side on two processors: two have Spark at first (tests/conftest.py), the third one begins
# with what waits for servers more than it works.
# Bytecode is kept beside the environment, also where the machine says that none be written: each of the many processes
# that tests start would compile all that it imports.
COMPILE = env -u PYTHONDONTWRITEBYTECODE PYTHONPYCACHEPREFIX="$(CURDIR)/$(VENV)/bytecode"
PYTEST  = $(COMPILE) $(BIN)/pytest --numprocesses 3

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
# Tests of a lake in an object store: those of the libraries' settings, tables and leases, then Spark with two other machines.
STORE_TESTS = tests/unit/test_store_options.py tests/unit/test_lease.py tests/unit/test_bronze_object_store.py \
  tests/live/test_receive_object_store.py tests/spark/test_lake_in_store.py

.PHONY: help demo test test-fast test-faults test-store test-azurite test-cluster test-rest test-hive test-long lint type format bench bench-quick bench-check peers docs matrix fuzz lock clean

help: ## print this
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /\1\t/' | expand -t 14

demo: $(VENV)/$(if $(STORE),.dev,.run) ## set everything up, run the shop into a lake, prove it equal, report (SOURCE=gaussdb: over GaussDB's wire; STORE=s3: into an object store, by a Spark cluster)
	@$(COMPILE) SOURCE="$(SOURCE)" PATH="$(CURDIR)/$(BIN):$$PATH" $(if $(STORE),python pipelines/shop_store.py,sh pipelines/demo.sh)

test: $(VENV)/spark.jsa ## all tests but the slow ones, with a small budget for the random ones
	@$(PYTEST)

test-fast: $(VENV)/.dev ## tests without Spark
	@$(PYTEST) -m "not spark and not slow"

test-azurite: $(VENV)/.dev ## a lake in ADLS over Microsoft's emulator, which npm fetches (needs Node.js)
	@CDC_LAKE_REQUIRE_AZURITE=1 $(COMPILE) $(BIN)/pytest --numprocesses 0 tests/live/test_azurite.py tests/live/test_azurite_table_log.py

test-faults: $(VENV)/.dev ## the fault tests of each promise at a small budget, with what they counted
	@$(COMPILE) $(BIN)/python -m tests.reliability --small

test-store: $(VENV)/spark.jsa ## a lake in an S3 store: contract, leases, faults of the store, other machines, two writers of one table
	@$(PYTEST) $(STORE_TESTS)
	@$(COMPILE) $(BIN)/python -m tests.unfenced_store

test-cluster: $(VENV)/spark.jsa ## a Spark cluster whose executors do not see the driver's disk; executors and drivers are killed
	@$(PYTEST) tests/spark/test_spark_cluster.py

test-rest: $(VENV)/.dev ## silver in REST catalogs of other makes and in Glue; that Nessie is refused (Java 17 and 21, Maven)
	@$(COMPILE) $(BIN)/pytest -n0 -m slow tests/spark/test_foreign_catalogs.py -k "not hive"

test-hive: $(VENV)/.dev ## silver in a Hive metastore (Java)
	@$(COMPILE) $(BIN)/pytest -n0 -m slow tests/spark/test_foreign_catalogs.py -k hive

# Tests of promises run by themselves, one after the other but where their promise says otherwise: some assert what they
# take, which is theirs alone only so. Some tests of Spark have more seeds and longer ones with a greater budget: at ten
# times it they would take a day.
test-long: $(VENV)/spark.jsa ## all tests at full budget, with a row of each promise, then the receiver on PostgreSQL 14 to 17, all types on 14 and 17
	@CDC_LAKE_BUDGET=10 $(PYTEST) -m "not spark" --timeout 3600 $$($(BIN)/python -m tests.reliability --others)
	@CDC_LAKE_BUDGET=3 $(PYTEST) -m spark --timeout 3600 $$($(BIN)/python -m tests.reliability --others)
	@$(BIN)/python -m tests.reliability
	@for version in 14 16 17; do CDC_LAKE_TEST_POSTGRES=$$version $(PYTEST) tests/live -m "not spark and not slow" || exit 1; done
	@CDC_LAKE_TEST_POSTGRES=15 $(PYTEST) tests/live/test_postgres_versions.py
	@for version in 14 17; do CDC_LAKE_TEST_POSTGRES=$$version $(PYTEST) tests/spark/test_types_copy_and_stream.py tests/spark/test_types_round_trip.py || exit 1; done

lint: $(VENV)/.dev ## ruff, mypy, import contracts
	@$(BIN)/ruff check . && $(BIN)/ruff format --check . && $(BIN)/mypy && $(BIN)/lint-imports && $(BIN)/python tools/house.py

type: $(VENV)/.dev ## mypy alone
	@$(BIN)/mypy

format: $(VENV)/.dev ## format the code
	@$(BIN)/ruff check --fix . ; $(BIN)/ruff format .

bench: $(VENV)/.dev ## the benchmarks of docs/performance.md, or some of them (SCENARIOS="P3 P4")
	@$(BIN)/python benchmarks/run.py $(SCENARIOS)

bench-quick: $(VENV)/.dev ## the same, small
	@$(BIN)/python benchmarks/run.py $(SCENARIOS) --quick

bench-check: $(VENV)/.dev ## whether a ratio to a peer fell since the baseline; measures nothing
	@$(BIN)/python benchmarks/run.py $(SCENARIOS) --check

peers: $(VENV)/.uv ## tools of other makes to measure beside, in an environment of their own (SOURCE=DIR: dlt's pg_replication)
	@$(BIN)/python benchmarks/peers/environment.py $(if $(SOURCE),--source $(SOURCE))

docs: $(VENV)/.dev ## regenerate the reference pages
	@$(BIN)/python -m tools.docs
	@$(BIN)/python -m tests.reliability --page

matrix: $(VENV)/.dev ## what each version of PostgreSQL can do, shown on each of them, as a page
	@$(BIN)/python -m tests.postgres_matrix

fuzz: $(VENV)/.dev ## bytes that nobody should send, guided by coverage (Linux): TARGETS="parked note", SECONDS=120 each
	@$(INSTALL) --editable '.[dev,fuzz]'
	@$(BIN)/python -m tests.fuzz grow $(TARGETS) --seconds $(or $(SECONDS),120)

lock: $(VENV)/.uv ## solve the versions of constraints.txt again
	@$(BIN)/uv pip compile --quiet --universal --python-version 3.11 --extra dev --extra fuzz --no-header --no-annotate --no-emit-index-url \
	  --constraint constraints.in --output-file constraints.txt pyproject.toml

clean: ## remove the environment, the demo's lake and its servers
	@if [ -d .demo ] && [ -x $(BIN)/python ]; then $(BIN)/python pipelines/shop_workload.py remove; fi
	@rm -rf $(VENV) .demo lake reports

$(VENV)/.uv:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "cdc_lake needs Python 3.11 or newer: make PYTHON=python3.11 $(MAKECMDGOALS)" >&2; exit 2; }
	@echo "making the environment in $(VENV) (once)"
	@$(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check uv==0.13.9
	@touch $@

$(VENV)/.run: $(VENV)/.uv pyproject.toml constraints.txt
	@$(INSTALL) --editable '.[all]'
	@touch $@

$(VENV)/.dev: $(VENV)/.uv pyproject.toml constraints.txt
	@$(INSTALL) --editable '.[dev]'
	@rm -rf $(VENV)/bytecode
	@touch $@ $(VENV)/.run

$(VENV)/spark.jsa: $(VENV)/.dev
	@rm -f $@
	@$(BIN)/python -m tests.class_archive $@
