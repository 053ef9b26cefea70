"""The folder of a run: the contract with trainers, metrics.jsonl, and how reports read it."""
