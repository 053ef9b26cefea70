# GPU 0, with SGLang: the benchmark of throughput, then SmolLM2. bash g0.sh REPO SIZES...
repo=$1; shift; export NCCL_NVLS_ENABLE=0 TORCH_SYMM_MEM_DISABLE_MULTICAST=1 NVSHMEM_DISABLE_NVLS=1 PYTHONUNBUFFERED=1
. $HOME/gpu/env.sh; export PYTHONPATH=$HOME/orl:$PYTHONPATH:$repo CUDA_VISIBLE_DEVICES=0
R=$HOME/r L=$HOME/log; mkdir -p $L; cd $repo; say() { echo "g0 $(date +%T) $*" | tee -a $L/stages.txt; }
if [ $# -gt 0 ]; then
setsid python3 -m sglang.launch_server --model-path $R/m17 --load-format dummy --dtype bfloat16 --attention-backend triton --sampling-backend pytorch --mem-fraction-static 0.85 --enable-cache-report --grammar-backend none --cuda-graph-max-bs 256 --max-running-requests 1024 --skip-tokenizer-init --port 30021 > $L/sglang.txt 2>&1 & server=$!
for i in $(seq 240); do curl -sf -m 2 http://127.0.0.1:30021/health >/dev/null && break; kill -0 $server 2>/dev/null || break; sleep 1; done; say "sglang up"
for n in "$@"; do timeout -k 10 700 python3 -m benchmarks.throughput --url http://127.0.0.1:30021 --model $R/m17 --rollouts $n > $L/t$n.txt 2>&1; say "t$n rc $?"; cat $L/t$n.txt | tail -8; done
kill -TERM -- -$server; sleep 5; kill -KILL -- -$server 2>/dev/null
fi
for i in $(seq 600); do [ -f $L/warm11 ] && break; sleep 1; done
cd $R; T=420 bash h.sh real sglang40 11 0 40; say sglang40; python3 times.py sglang40
say g0 done
