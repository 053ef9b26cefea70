# The shape of the model `heads` of benchmarks/bare_host/models.py for Megatron.
source "$(dirname "${BASH_SOURCE[0]}")/../../configs/guess-number.sh"
MODEL_ARGS+=(--num-attention-heads 4 --num-query-groups 2)
