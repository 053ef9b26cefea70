# The shape of SmolLM2-135M-Instruct for Megatron, as slime's scripts/models give it for larger models.
MODEL_ARGS=(
   --swiglu
   --num-layers 30
   --hidden-size 576
   --ffn-hidden-size 1536
   --num-attention-heads 9
   --group-query-attention
   --num-query-groups 3
   --kv-channels 64
   --use-rotary-position-embeddings
   --rotary-base 100000
   --disable-bias-linear
   --normalization "RMSNorm"
   --norm-epsilon 1e-5
   --vocab-size 49152
)
