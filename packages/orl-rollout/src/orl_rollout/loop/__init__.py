"""The rollout loop and its protocols: one episode, thirteen promises. It imports no transport and no tokenizer."""
