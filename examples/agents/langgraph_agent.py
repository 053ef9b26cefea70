"""Play an episode with LangGraph: an agent for `agent: langgraph_agent:agent` in the configuration.

LangGraph knows nothing of orl. The model is LangChain's ChatOpenAI with the episode's URL. The environment's tools are
plain schemas here, called through `episode.call`; a client of `episode.mcp_url` finds the same ones.
Install it with `uv pip install langgraph langchain-openai`.
"""

from __future__ import annotations

from typing import Any

import httpx
from langchain_core.messages import AIMessage
from langchain_core.runnables import Runnable
from langchain_core.tools import StructuredTool
from langchain_openai import ChatOpenAI
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode
from orl_core import ToolSpec
from orl_gateway import AgentEpisode
from pydantic import SecretStr

PATIENCE = 3600.0  # seconds for an answer of the model; `turn_timeout` of the configuration counts
STEPS = 10**6  # of a graph; `max_turns` of the configuration counts, and LangGraph's own limit raises an error


async def agent(episode: AgentEpisode) -> None:
    """Play one episode."""
    async with httpx.AsyncClient(timeout=PATIENCE) as http:  # LangChain's own clients stay open after the episode
        model = ChatOpenAI(
            model=episode.model, base_url=episode.base_url, api_key=SecretStr(episode.api_key), http_async_client=http
        )
        graph = _graph(episode, model.bind_tools([_schema(tool) for tool in episode.tools]))
        await graph.compile().ainvoke({"messages": [("user", episode.prompt)]}, {"recursion_limit": STEPS})


def _graph(episode: AgentEpisode, model: Runnable[Any, Any]) -> StateGraph[Any, Any, Any, Any]:
    """Return a graph that asks the model and makes its calls, in turn."""

    async def ask(state: MessagesState) -> dict[str, Any]:
        return {"messages": [await model.ainvoke(state["messages"])]}

    def after_model(state: MessagesState) -> str:
        last = state["messages"][-1]
        return "tools" if isinstance(last, AIMessage) and last.tool_calls else END

    def after_tools(_: MessagesState) -> str:
        return END if episode.over() else "model"  # the gateway answers no request after the episode

    graph = StateGraph(MessagesState)
    graph.add_node("model", ask)
    graph.add_node("tools", ToolNode([_tool(episode, tool) for tool in episode.tools]))
    graph.add_edge(START, "model")
    graph.add_conditional_edges("model", after_model, ["tools", END])
    graph.add_conditional_edges("tools", after_tools, ["model", END])
    return graph


def _schema(tool: ToolSpec) -> dict[str, Any]:
    """Return the schema as the model reads it. LangChain leaves out parts of one that it writes itself."""
    function = {"name": tool.name, "description": tool.description, "parameters": tool.parameters}
    return {"type": "function", "function": function}


def _tool(episode: AgentEpisode, tool: ToolSpec) -> StructuredTool:
    async def call(**arguments: Any) -> str:
        return await episode.call(tool.name, **arguments)

    return StructuredTool.from_function(
        coroutine=call, name=tool.name, description=tool.description, args_schema=tool.parameters
    )
