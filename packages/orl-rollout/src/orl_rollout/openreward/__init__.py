"""OpenReward: its environments as sessions. One client for each event loop; the SDK is imported on first use."""

from orl_rollout.openreward.client import OpenRewardClient
from orl_rollout.openreward.session import OpenRewardSession

__all__ = ["OpenRewardClient", "OpenRewardSession"]
