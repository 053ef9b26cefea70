"""A run of the trainer: attempts, recovery, and what ends it."""
