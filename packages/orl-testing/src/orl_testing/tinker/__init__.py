"""A stand-in for a Tinker server on loopback, which computes on a real model with LoRA adapters, in torch on a CPU."""
