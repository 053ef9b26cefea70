"""The tokenizer as a protocol, because core may not import transformers.

orl_rollout.tokenizer.tokenizer implements it over a Hugging Face checkpoint. `certify` tests every promise below.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol, runtime_checkable


@runtime_checkable
class Tokenizer(Protocol):
    """Tokenizer and chat template as the renderer uses them. Called from several threads at once."""

    @property
    def added_tokens(self) -> Mapping[str, int]:
        """Return every added token, special or not: its text and its id. These are the control ids."""
        ...

    @property
    def vocabulary_size(self) -> int:
        """Return the number above every id that the model can sample."""
        ...

    @property
    def stop_ids(self) -> tuple[int, ...]:
        """Return the ids that end an action, in any order; the renderer finds the one that the template closes with."""
        ...

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        """Return the ids of each text. No text whatever yields a control id; nothing is put before or after.

        The texts hold no lone surrogates.
        """
        ...

    def encode_joint(self, text: str) -> list[int]:
        """Return the ids of a rendered template, added tokens recognised; certification compares with them."""
        ...

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of `ids`, control ids included. Total: incomplete UTF-8 becomes U+FFFD."""
        ...

    def apply_chat_template(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] | None,
        add_generation_prompt: bool,
    ) -> str:
        """Return the text of a conversation in the model's own chat template, its keyword arguments frozen for the run.

        Raises:
            Exception: whatever the template raises for a conversation that it cannot express.
        """
        ...
