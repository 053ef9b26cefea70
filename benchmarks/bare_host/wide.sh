# The shape of the model `wide` of benchmarks/bare_host/models.py for Megatron.
source "$(dirname "${BASH_SOURCE[0]}")/../../configs/guess-number.sh"
MODEL_ARGS+=(--ffn-hidden-size 65536)
