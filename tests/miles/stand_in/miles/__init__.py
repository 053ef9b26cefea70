"""As much of miles as a launcher sees: a package beside train.py and scripts/models."""
