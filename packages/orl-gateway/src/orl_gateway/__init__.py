"""orl-gateway: agents of any framework collect rollouts, and train on the token ids that were sampled.

An agent speaks OpenAI's or Anthropic's API to a URL of its own. The gateway renders only what is new, samples through
orl's engine, and keeps a tree of turns. A finished episode is a Trajectory like any other.

Import the names of `__all__` from here. The modules below are internal:

agent     collects a rollout with an agent: a function or a program
api       the HTTP server: a URL for each episode, MCP, and the recorder for agents with tools of their own
episode   one episode: its tree of turns, its budgets, its environment
dialects  the APIs that agents speak, as pure functions
"""

from orl_gateway.agent.agent_player import AgentEpisode
from orl_gateway.api.gateway import Gateway
from orl_gateway.episode.episode import Episode

__all__ = ["AgentEpisode", "Episode", "Gateway"]
