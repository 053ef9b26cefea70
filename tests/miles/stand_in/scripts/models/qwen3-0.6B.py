"""A shape, as miles writes them."""


def model_args() -> str:
    return """
        --swiglu --num-layers 28
        --normalization RMSNorm
    """
