"""Measure the costs of orl side by side in one run. Each module answers one question: `just bench NAME` runs one.

Every figure is a median of interleaved rounds, next to what it is compared with; machines are noisy, ratios less so.
Servers run in processes of their own, so that the CPU of this process is the client's alone.
"""
