"""The commands of `orl`: one module each, with `add_options(parser)` and `run(arguments)`."""
