"""Play an episode with the OpenAI Agents SDK: an agent for `agent: openai_agents:agent` in the configuration.

The SDK knows nothing of orl. It gets a client of the episode's URL, and finds the environment's tools over MCP.
Install it with `uv pip install openai-agents`.
"""

from __future__ import annotations

import ssl
from typing import Any

import httpx
from agents import Agent, OpenAIChatCompletionsModel, RunConfig, Runner, ToolsToFinalOutputResult
from agents.mcp import MCPServerStreamableHttp, MCPServerStreamableHttpParams
from openai import AsyncOpenAI, DefaultAsyncHttpxClient
from orl_gateway import AgentEpisode

PATIENCE = 3600.0  # seconds; `turn_timeout` and `call_timeout` of the configuration count, and the SDK's are shorter
TLS = ssl.create_default_context()  # one for all clients: to make one takes longer than a turn


def _http(headers: Any = None, timeout: Any = None, auth: Any = None) -> httpx.AsyncClient:
    return httpx.AsyncClient(headers=headers, timeout=timeout, auth=auth, verify=TLS)


async def agent(episode: AgentEpisode) -> str:
    """Play one episode and return the last text of the model."""

    def after_calls(context: Any, results: list[Any]) -> ToolsToFinalOutputResult:
        """End the run with the episode: the gateway answers no request after it."""
        return ToolsToFinalOutputResult(is_final_output=episode.over(), final_output="")

    server = MCPServerStreamableHttpParams(url=episode.mcp_url, timeout=PATIENCE, httpx_client_factory=_http)
    async with (
        DefaultAsyncHttpxClient(timeout=PATIENCE, verify=TLS) as http,
        AsyncOpenAI(base_url=episode.base_url, api_key=episode.api_key, http_client=http) as client,
        MCPServerStreamableHttp(server, cache_tools_list=True, client_session_timeout_seconds=PATIENCE) as environment,
    ):
        player = Agent(
            name="player",
            model=OpenAIChatCompletionsModel(episode.model, openai_client=client),
            mcp_servers=[environment],
            tool_use_behavior=after_calls,
        )
        result = await Runner.run(
            player,
            episode.prompt,
            max_turns=None,  # `max_turns` of the configuration counts; the SDK's own limit of 10 raises an error
            run_config=RunConfig(
                tracing_disabled=True,  # traces would go to OpenAI
                tool_not_found_behavior="return_error_to_model",  # else a mistake of the model is an ERROR of the agent
            ),
        )
    return str(result.final_output)
