"""`orl convert`: the trainer's own conversion tools."""
