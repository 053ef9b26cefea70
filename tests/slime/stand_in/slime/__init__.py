"""As much of slime as a launcher sees: a package beside train.py and scripts/models."""
