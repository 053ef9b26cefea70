"""`orl init`: asks an environment's server what it has, and writes a configuration for it."""
