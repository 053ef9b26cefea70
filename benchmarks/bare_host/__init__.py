"""Runs slime and miles with Megatron on a host without TransformerEngine and flash-attention.

attention.py   attention for packed sequences, of torch's SDPA: `--spec benchmarks.bare_host.attention get_spec`
models.py      the tiny model for two GPUs, as a mixture of experts, and with a wide MLP
heads.sh, experts.sh, wide.sh
               their shapes for slime; shape.py hands one to miles
patches.py     other names of Megatron's local layers, in checkouts of slime and miles
router.py      a router that hands every field of a request to the engine
"""
