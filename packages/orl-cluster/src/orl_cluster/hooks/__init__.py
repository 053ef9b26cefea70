"""The trainer's half: the functions that a trainer's workers call for rollouts, rewards, filters and logs."""
