"""Where a run starts: the trainer's Python, what a probe finds there, and the Ray cluster."""
