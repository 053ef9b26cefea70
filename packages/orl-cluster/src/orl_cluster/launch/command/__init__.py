"""The command line of a run: options from the configuration, checked before anything starts."""
