"""The edge: what touches the network, the process and the disk. Nothing else of orl_rollout is below it."""
