"""An engine that costs next to nothing and takes the time of a real one: POST /generate of SGLang, one fixed answer.

The stand-in of `orl_testing` checks requests and models a cache; for a thousand rollouts on a few cores it
would be what is measured. Here the answer is written once, and a prompt is counted by its commas. An answer takes
`prefill_seconds` for each new id of the prompt and `decode_seconds` for each id of the answer, a fifth more or less by
chance, in one of `slots` (0: any number at once). GET /stats tells what an engine without a client would have needed.
"""

from __future__ import annotations

import asyncio
import random
import sys
from contextlib import nullcontext
from typing import Any

import msgspec
from aiohttp import web

from benchmarks.servers import read_settings

ROUTING_KEY = "X-SMG-Routing-Key"
BACKLOG = 4096


class Engine:
    """The settings and the books: engine seconds and prompt lengths by rollout."""

    def __init__(self, settings: dict[str, Any]) -> None:
        ids: list[int] = settings["answer"]
        self.answer = answer_of(ids)
        self.chat = msgspec.json.encode(settings.get("chat"))
        self.decode = settings.get("decode_seconds", 0.0) * len(ids)
        self.prefill = settings.get("prefill_seconds", 0.0)
        slots = settings.get("slots", 0)
        self.slots = asyncio.Semaphore(slots) if slots else nullcontext()
        self.chance = random.Random(0)
        self.reset()

    def reset(self) -> None:
        self.seconds: dict[str, float] = {}
        self.prompts: dict[str, int] = {}

    async def generate(self, http: web.Request) -> web.Response:
        body = await http.read()
        key = http.headers.get(ROUTING_KEY, "")
        length = body.count(b",")
        new, self.prompts[key] = length - self.prompts.get(key, 0), length
        seconds = (self.prefill * max(new, 0) + self.decode) * self.chance.uniform(0.8, 1.2)
        self.seconds[key] = self.seconds.get(key, 0.0) + seconds
        async with self.slots:
            if seconds:
                await asyncio.sleep(seconds)
        return web.Response(body=self.answer, content_type="application/json")

    async def chats(self, http: web.Request) -> web.Response:
        """The answer of the setting `chat`, in the form of OpenAI."""
        await http.read()
        return web.Response(body=self.chat, content_type="application/json")

    async def stats(self, http: web.Request) -> web.Response:
        """The books since the last look: `longest` and `total` in engine seconds."""
        seconds = self.seconds.values()
        books = {"longest": max(seconds, default=0.0), "total": sum(seconds)}
        self.reset()
        return web.json_response(books)


def answer_of(ids: list[int]) -> bytes:
    """SGLang's answer of `ids`, ended by a stop token."""
    meta = {
        "id": "0" * 32,
        "finish_reason": {"type": "stop", "matched": ids[-1]},
        "prompt_tokens": 1,
        "completion_tokens": len(ids),
        "cached_tokens": 0,
        "weight_version": "1",
        "e2e_latency": 0.5,
        "output_token_logprobs": [(-0.001 * (token % 997) - 0.0123456789, token, None) for token in ids],
        "input_token_logprobs": [],
    }
    return msgspec.json.encode({"text": " ".join(map(str, ids)), "output_ids": ids, "meta_info": meta})


async def main() -> None:
    settings = read_settings()
    engine = Engine(settings)
    app = web.Application(client_max_size=1 << 30)
    app.router.add_post("/generate", engine.generate)
    app.router.add_post("/v1/chat/completions", engine.chats)
    app.router.add_get("/stats", engine.stats)
    runner = web.AppRunner(
        app, access_log=None, shutdown_timeout=0.1, keepalive_timeout=settings.get("keepalive_seconds", 5.0)
    )
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", settings["port"], backlog=BACKLOG).start()
    await asyncio.to_thread(sys.stdin.read)
    await runner.cleanup()


if __name__ == "__main__":
    asyncio.run(main())
