"""The runtime: play many rollouts at once, with admission by environment and a circuit breaker."""
