"""A tokenizer that counts. The modules of laws are imported by nobody: they keep the examples of their profile."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from orl_core.render import Tokenizer


class Counting:
    """A tokenizer that counts what it is given: characters to encode, ids to decode, conversations to render."""

    def __init__(self, inner: Tokenizer) -> None:
        self._inner = inner
        self.characters = 0
        self.ids = 0
        self.renders = 0

    @property
    def vocabulary_size(self) -> int:
        return self._inner.vocabulary_size

    @property
    def added_tokens(self) -> Mapping[str, int]:
        return self._inner.added_tokens

    @property
    def stop_ids(self) -> tuple[int, ...]:
        return self._inner.stop_ids

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        self.characters += sum(map(len, texts))
        return self._inner.encode(texts)

    def encode_joint(self, text: str) -> list[int]:
        self.characters += len(text)
        return self._inner.encode_joint(text)

    def decode(self, ids: Sequence[int]) -> str:
        self.ids += len(ids)
        return self._inner.decode(ids)

    def apply_chat_template(self, messages: Any, *, tools: Any, add_generation_prompt: bool) -> str:
        self.renders += 1
        return self._inner.apply_chat_template(messages, tools=tools, add_generation_prompt=add_generation_prompt)

    def spent(self) -> tuple[int, int, int]:
        """Return the counts since the last time, in the order above."""
        counted = (self.characters, self.ids, self.renders)
        self.characters = self.ids = self.renders = 0
        return counted
