# GPU 1, with vLLM: bash g1.sh STAGES... of check warm forty sleep apart
here=$(cd "$(dirname "$0")" && pwd); . $here/vllm-env.sh; export NCCL_NVLS_ENABLE=0 CUDA_VISIBLE_DEVICES=${G:-1}
R=$HOME/r L=$HOME/log; mkdir -p $L; cd $R; say() { echo "g1 $(date +%T) $*" | tee -a $L/stages.txt; }
orl() { python3 -c "import sys; from orl_launcher.main import program; sys.exit(program())" "$@"; }
words() { cat $L/words 2>/dev/null; }
real() { n=$1 k=$2; shift 2; timeout -k 20 ${T:-420} python3 -c "import sys; from orl_launcher.main import program; sys.exit(program())" train local --config configs/smollm2.yaml --engine vllm --name $n --seed 11 --num-rollout $k "$@" > $L/$n.txt 2>&1; say "$n rc $?"; tail -3 $L/$n.txt; python3 times.py $n; }
vwords() { words | sed 's/--enforce-eager/--vllm-enforce-eager=True/; s/--attention-backend /--vllm-attention-backend=/'; }
after() { [ -n "$(words)" ] && echo "-- $(vwords)"; }
for stage in "$@"; do case $stage in
check)
  folder=$(python3 warm.py convert 2>$L/convert.txt | tail -1); say "converted $folder"
  if [ ! -f $L/warm11 ]; then (python3 warm.py warm 11 > $L/warm.txt 2>&1; say "warm rc $?"; touch $L/warm11) & fi
  for w in "" "--enforce-eager" "--enforce-eager --attention-backend TRITON_ATTN" none; do
    [ "$w" = none ] && { say "check failed in each way"; break; }
    echo "$w" > $L/words; timeout -k 10 330 python3 vllm-check.py $folder --share 0.3 $w > $L/check.txt 2>&1 && { say "check good with '$w'"; break; }
    say "check rc $? with '$w'"; cp $L/check.txt "$L/check-failed-$(echo $w | tr -dc a-zA-Z).txt"; for e in check-*/engine.log; do [ -f $e ] && tail -c 15000 $e > "$L/engine-$(echo $w | tr -dc a-zA-Z).txt"; done; rm -rf check-*; grep -q "^BAD\|^failed" $L/check.txt && break
  done; for e in check-*/engine.log; do [ -f $e ] && tail -c 60000 $e > $L/engine-check.txt; done; cat $L/check.txt | tail -45 ;;
forty) wait; real vllm40 40 $(after) ;;
sleep) real vllmsleep 4 -- --vllm-gpu-memory-utilization 0.8 $(vwords) ;;
apart) CUDA_VISIBLE_DEVICES=0,1; real vllmapart 4 --num-gpus 2 --rollout-gpus 1 $(after) ;;
async) real vllmasync 12 --async $(after) ;;
esac; done; say "g1 done: $*"
