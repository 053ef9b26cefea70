"""What orl costs, measured side by side in one run: one module a question, `just bench NAME` for one of them.

Every figure is a median of interleaved rounds, next to what it is compared with; machines are noisy, ratios less so.
Servers run in processes of their own, so that the CPU of this process is the client's alone.
"""
