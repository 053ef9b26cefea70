# On the GPU host: bash vllm.sh prep | serve MODEL PORT | probe PORT [MODEL] | stop [PORT] | env
# PORT may be the path of a Unix socket, as orl uses it. Options: VOPT (more of vLLM's), LEN (context), SHARE (of the
# GPU's memory), WAIT (seconds to /health), NOSLEEP=1 (no sleep mode), CUDA_VISIBLE_DEVICES. Parts: $HOME/k/v*/vsite.N.
set -uo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd); . "$here/vllm-env.sh"
run=$HOME/vllm-run; mkdir -p "$run"
name_of() { echo "$1" | tr -c 'A-Za-z0-9\n' _; }
ask() { case $1 in /*) curl -sf -m 3 --unix-socket "$1" "http://localhost$2";; *) curl -sf -m 3 "http://127.0.0.1:$1$2";; esac; }
end_one() {  # the group of one server: SIGTERM, and SIGKILL after 20 s
  local file=$1 pid; pid=$(cat "$file") || return 0; rm -f "$file"
  kill -TERM -- "-$pid" 2>/dev/null || return 0
  for _ in $(seq 40); do kill -0 -- "-$pid" 2>/dev/null || { echo "stopped $pid"; return 0; }; sleep 0.5; done
  kill -KILL -- "-$pid" 2>/dev/null; echo "killed $pid"
}
case ${1:-} in
prep)
  [ -f "$HOME/vsite/.ready" ] && { echo "vsite is there"; exit 0; }
  parts=$(ls "$HOME"/k/v*/vsite.* 2>/dev/null | sort -V); [ -n "$parts" ] || { echo "no parts in $HOME/k/v*/"; exit 1; }
  rm -rf "$HOME/vsite"
  cat $parts | xz -dc -T0 | tar -C "$HOME" -xf - || { echo "the parts do not unpack: $parts"; exit 1; }
  PYTHONPATH= python3 -m compileall -q -j 16 "$HOME/vsite" >/dev/null 2>&1
  python3 -c "import torch, vllm, transformers; print('vllm', vllm.__version__, 'torch', torch.__version__, 'transformers', transformers.__version__, vllm.__file__)" || exit 1
  touch "$HOME/vsite/.ready" ;;
serve)
  model=$2 port=$3 log=$run/$(name_of "$3").log pid=$run/$(name_of "$3").pid
  [ -f "$pid" ] && end_one "$pid"
  case $port in /*) rm -f "$port"; place="--uds $port";; *) place="--host 127.0.0.1 --port $port";; esac
  [ -n "${NOSLEEP:-}" ] || sleep_mode=--enable-sleep-mode
  export VLLM_SERVER_DEV_MODE=1 VLLM_ALLOW_INSECURE_SERIALIZATION=1
  began=$SECONDS
  setsid nohup python3 -P -m vllm.entrypoints.cli.main serve "$model" $place --dtype bfloat16 --seed 0 \
    --max-model-len "${LEN:-4096}" --gpu-memory-utilization "${SHARE:-0.4}" --enable-scale-out --enable-prompt-tokens-details \
    --logprobs-mode processed_logprobs --weight-transfer-config '{"backend":"ipc"}' --disable-uvicorn-access-log \
    ${sleep_mode:-} ${VOPT:-} >"$log" 2>&1 </dev/null &
  echo $! >"$pid"; server=$!
  while [ $((SECONDS - began)) -lt "${WAIT:-240}" ]; do
    ask "$port" /health >/dev/null 2>&1 && { echo "serves at $port after $((SECONDS - began)) s, pid $server"; exit 0; }
    kill -0 "$server" 2>/dev/null || break
    sleep 1
  done
  kill -0 "$server" 2>/dev/null && echo "no /health after $((SECONDS - began)) s" || echo "it ended after $((SECONDS - began)) s"
  grep -nE "Error|Traceback|error:" "$log" | cut -c1-300 | head -20; echo ...; tail -n 60 "$log" | cut -c1-400
  end_one "$pid"; exit 1 ;;
probe) shift; python3 "$here/vllm_probe.py" "$@" ;;
stop)
  one='*'; [ -n "${2:-}" ] && one=$(name_of "$2")
  for file in "$run"/$one.pid; do [ -f "$file" ] && end_one "$file"; done; exit 0 ;;
env) cat "$here/vllm-env.sh" ;;
*) sed -n 1,3p "${BASH_SOURCE[0]}"; exit 2 ;;
esac
