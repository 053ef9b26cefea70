"""The training of a run: rollouts, TRL's trainer, its loss, checkpoints and metrics."""
