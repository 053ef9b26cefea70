"""Recorded episodes: every trajectory on disk before it counts, as events of OpenReward, and their upload."""
