"""orl-gateway: agents of any framework play, and train on the token ids that were sampled.

An agent speaks OpenAI's or Anthropic's API to a URL of its own. The gateway renders only what is new, samples through
orl's engine, and keeps a tree of turns. A finished episode is a Trajectory like any other.

Import the names of `__all__` from here. The modules below are internal:

server    Gateway: a URL for each episode
shared    one Gateway for each event loop
player    plays a rollout with an agent, a function or a program (command)
recorder  the gateway alone, for agents with tools of their own
mcp       the environment's tools over MCP
episode   Episode: owns session, tree and budgets; ask, count, call, finish, trajectory
tree      where a request continues, and what was sampled there; matching: which requests say the same
answer    from an action to the reply that an agent gets
causes    why an agent began another conversation
retries   a repeated request gets the same answer
allowance turns, time and ids of one episode; state: its ending and its fault
tool_side the environment's tools, and their results
dialects  the APIs that agents speak
"""

from orl_gateway.episode import Episode
from orl_gateway.player import AgentEpisode
from orl_gateway.server import Gateway

__all__ = ["AgentEpisode", "Episode", "Gateway"]
