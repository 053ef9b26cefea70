# The shape of the model `experts` of benchmarks/bare_host/models.py for Megatron.
source "$(dirname "${BASH_SOURCE[0]}")/heads.sh"
MODEL_ARGS+=(
   --num-experts 8
   --moe-router-topk 2
   --moe-ffn-hidden-size 256
   --moe-router-score-function softmax
   --moe-router-dtype fp32
   --moe-token-dispatcher-type alltoall
   --moe-token-drop-policy probs
   --moe-aux-loss-coeff 0
   --untie-embeddings-and-output-weights
)
