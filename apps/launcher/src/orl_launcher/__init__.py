"""orl-launcher: the `orl` command. Thin: it reads options, calls orl_rollout and a trainer's adapter, shows results.

main             the command line, which imports one of `commands` and runs it
commands         one module for each command
cli              the parser that all commands share; trainer_options: options that override the configuration
doctor           the checks of `orl doctor`
view             the terminal, charts, and the HTML report
playground       the environments and the tiny model that the command brings itself
"""
