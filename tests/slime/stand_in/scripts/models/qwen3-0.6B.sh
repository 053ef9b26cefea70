MODEL_ARGS=(
   --swiglu
   --num-layers 28
   --hidden-size 1024
   --normalization "RMSNorm"
)
