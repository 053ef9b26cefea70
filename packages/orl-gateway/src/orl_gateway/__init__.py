"""orl-gateway: agents of any framework play, and train on the token ids that were sampled.

An agent speaks OpenAI's or Anthropic's API to a URL of its own. The gateway renders only what is new, samples through
orl's engine, and keeps a tree of turns. A finished episode is a Trajectory like any other.

dialects  the APIs that agents speak
"""
