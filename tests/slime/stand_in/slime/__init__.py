"""As much of slime as a launcher sees: a package, train.py and scripts/models."""
