"""Tokenizers of Hugging Face checkpoints, read as data, with their chat templates."""
