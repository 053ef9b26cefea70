"""A shape that is computed, with a module that miles puts in place for it."""

from importlib import import_module


def model_args() -> str:
    return f"--num-layers 48 --num-experts 128 --moe-layer-freq {import_module('model_args_utils').moe_layer_freq(48)}"
