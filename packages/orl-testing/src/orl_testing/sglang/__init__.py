"""A stand-in for SGLang at the level of tokens: its HTTP API, scheduler, prefix cache, and faults on request."""
