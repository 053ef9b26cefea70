"""Uploads: send the journal to OpenReward in the background, at least once."""
