"""orl-launcher: the `orl` command. Thin: it reads options, calls orl_rollout and a trainer's adapter, shows results.

main        the command line; prepare, train, rollout, show, doctor, upload, install_into: one module for each command
cli         what the commands' parsers share; options: those that become overrides of the configuration
playground  the environments and the tiny model that the command brings itself
record      a run folder, read back; pieces: ids, made readable; pass_at_k: the estimator
tables      what the terminal shows; progress: a run, followed while it trains
report      a run folder as one self-contained page; page, curves: what it is made of
"""
