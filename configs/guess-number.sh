# The shape of the playground's tiny model for Megatron, as slime's scripts/models give it for real ones.
MODEL_ARGS=(
   --swiglu
   --num-layers 3
   --hidden-size 96
   --ffn-hidden-size 256
   --num-attention-heads 2
   --group-query-attention
   --num-query-groups 1
   --kv-channels 64
   --qk-layernorm
   --use-rotary-position-embeddings
   --rotary-base 10000
   --disable-bias-linear
   --normalization "RMSNorm"
   --norm-epsilon 1e-6
   --vocab-size 1280
)
