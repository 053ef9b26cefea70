"""The edge: retries, and what touches the network, the process and the disk. Nothing of orl_rollout is below it."""
