"""Tokenizers of Hugging Face checkpoints, read as data, with bounded chat templates."""
