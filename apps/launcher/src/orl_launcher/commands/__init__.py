"""The commands of `orl`: one module each, with `parser()` and `run(arguments)`."""
