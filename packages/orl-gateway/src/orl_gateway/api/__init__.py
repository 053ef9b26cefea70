"""APIs that agents speak to over HTTP.

gateway   Gateway: a URL for each episode
mcp       the environment's tools over MCP
recorder  the gateway alone, for agents with tools of their own
"""
