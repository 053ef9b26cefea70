"""`python -m orl_rollout.testing.environments`: the gallery in a process of its own."""

from orl_rollout.testing.environments.server import main

main()
