"""Results of rollouts: outcomes, metrics of a batch, scores of a group."""
