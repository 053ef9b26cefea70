"""The engines of a training run: the model itself, SGLang or vLLM on its GPU, or an SGLang at an address."""
