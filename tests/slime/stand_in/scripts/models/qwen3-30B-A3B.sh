# Scripts may compute: here the layers that are experts.
LAYERS=48
MODEL_ARGS=(
   --num-layers $LAYERS
   --num-experts 128
   --moe-layer-freq "$(printf '[%s]' "$LAYERS")"
)
