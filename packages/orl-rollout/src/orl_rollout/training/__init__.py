"""The training run: play tasks, make rows of the outcomes, and drive a policy step by step. It knows no torch."""
