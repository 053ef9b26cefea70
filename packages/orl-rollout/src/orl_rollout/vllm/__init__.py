"""vLLM behind the Engine protocol: its request for token ids, and answers taken exactly."""
