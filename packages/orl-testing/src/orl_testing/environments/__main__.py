"""`python -m orl_testing.environments`: the gallery in a process of its own."""

from orl_testing.environments.server import main

main()
