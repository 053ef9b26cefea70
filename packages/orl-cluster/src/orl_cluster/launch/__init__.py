"""The launcher's half: build the trainer's command line, check it in the trainer's Python, run it under Ray.

It runs in orl's own environment and imports no aiohttp, openreward or transformers.
"""
