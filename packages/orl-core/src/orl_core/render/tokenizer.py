"""The tokenizer that core is handed: a protocol, because core may not import transformers.

orl_rollout.tokenizer.tokenizer implements it over a Hugging Face checkpoint; tests implement it in a few lines.
Whatever an implementation promises here is tested by `certify` before it is trusted.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


class Tokenizer(Protocol):
    """Tokenizer and chat template as the renderer uses them. Called from several threads at once."""

    @property
    def added_tokens(self) -> Mapping[str, int]:
        """Every added token, special or not: its text and its id. These are the control ids."""
        ...

    @property
    def vocabulary_size(self) -> int:
        """The number above every id that the model can sample."""
        ...

    @property
    def stop_ids(self) -> tuple[int, ...]:
        """The ids that end an action, in any order; the renderer finds out which one the template closes with."""
        ...

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        """The ids of each text. No text whatever yields a control id; nothing is put before or after.

        The texts hold no lone surrogates.
        """
        ...

    def encode_joint(self, text: str) -> list[int]:
        """The ids of a rendered template, added tokens recognised: the reference that certification compares with."""
        ...

    def decode(self, ids: Sequence[int]) -> str:
        """The text of `ids`, control ids included. Total: incomplete UTF-8 becomes U+FFFD."""
        ...

    def apply_chat_template(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] | None,
        add_generation_prompt: bool,
    ) -> str:
        """The text of a conversation in the model's own chat template, its keyword arguments frozen for the run.

        Raises:
            Exception: whatever the template raises for a conversation that it cannot express.
        """
        ...
