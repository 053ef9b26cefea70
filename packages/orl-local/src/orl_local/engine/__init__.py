"""The engines of a training run: the model itself, an SGLang on the GPU that trains, or one at an address."""
