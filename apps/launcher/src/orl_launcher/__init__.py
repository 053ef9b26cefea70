"""Run the `orl` command: read options, call orl_rollout and a trainer's adapter, show results.

This package is a command and has no public names. To use orl from Python, import orl_core and orl_rollout.

main             the command line, which imports one of `commands` and runs it
commands         one module for each command
cli              the parser that all commands share; trainer_options: options that override the configuration
trainers         find the adapter of a trainer and plan a run
doctor           the checks of `orl doctor`
view             the terminal, charts, the HTML report, and the pages of `orl view`
playground       the environments and the tiny model that the command brings itself
"""
