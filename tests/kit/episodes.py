"""Sessions and whole rollouts of the gallery's environments, for the tests of this folder."""

from __future__ import annotations

from typing import Any, Self

from orl_core.config import RunConfig, decode_config
from orl_core.messages import ToolCall, ToolResult
from orl_core.task import Task
from orl_core.trajectory import Generation
from orl_rollout.openreward import OpenRewardClient
from orl_testing import ScriptedEngine

from tests.kit.tokenizers import renderer_of, tokenizer

TOKENIZER = tokenizer()
RENDERER = renderer_of()


def config_of(
    name: str, url: str | list[str] | None, secrets: dict[str, Any] | None = None, **environment: Any
) -> RunConfig:
    tree = {"environments": {f"gallery/{name}": {"base_url": url, **environment}}, "secrets": secrets or {}}
    return decode_config(tree, "test")


def task_of(name: str, /, number: int = 1, **spec: Any) -> Task:
    return Task(
        env_name=f"gallery/{name}",
        deployment_name=f"gallery/{name}",
        environment_name=name.lower(),
        task_spec={"number": number, **spec},
    )


class Playing:
    """A client and a session of one environment, opened and closed."""

    def __init__(self, name: str, url: str | None, spec: dict[str, Any] | None = None, **settings: Any) -> None:
        self.client = OpenRewardClient(config_of(name, url, **settings))
        self.task = task_of(name, **(spec or {}))

    async def __aenter__(self) -> Self:
        await self.client.__aenter__()
        self.session = self.client.session(self.task)
        try:
            self.opening = await self.session.open(self.task)
        except BaseException:
            await self.__aexit__()
            raise
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.session.close()
        await self.client.__aexit__(None, None, None)

    async def call(self, name: str, **arguments: Any) -> ToolResult:
        return await self.session.call(ToolCall(name=name, arguments=arguments))


def calling(*names: str) -> Generation:
    """A generation that calls tools without arguments, all in one action."""
    text = "\n".join(f'<tool_call>\n{{"name": "{name}", "arguments": {{}}}}\n</tool_call>' for name in names)
    ids = tuple(TOKENIZER.encode_joint(f"{text}<|im_end|>"))
    return Generation(token_ids=ids, logprobs=(-0.5,) * len(ids), finish_reason="stop")


def model(*actions: tuple[str, ...]) -> ScriptedEngine:
    """An engine whose every action calls the tools that are named."""
    return ScriptedEngine([calling(*names) for names in actions])
