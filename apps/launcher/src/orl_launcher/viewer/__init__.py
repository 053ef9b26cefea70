"""`orl view`: runs as pages of a local web server that reads and never writes a run's folder."""
