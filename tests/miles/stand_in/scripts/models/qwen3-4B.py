"""A shape that takes an argument with a default."""


def model_args(rotary_base: int = 1000000) -> str:
    return f"--swiglu --num-layers 36 --rotary-base {rotary_base}"
