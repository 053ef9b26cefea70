MODEL_ARGS=(
   --swiglu
   --num-layers 36
   --rotary-base "${MODEL_ARGS_ROTARY_BASE:-1000000}"
)
