"""As much of miles as a launcher sees: a package, train.py and scripts/models."""
