"""Dialects: the APIs that agents speak, as pure functions from the wire and to it.

exchange   ModelRequest, Reply, RequestRefused, ClientApi: what a request and its reply are
reading    fields, contents and conversations, shared by the readers
openai     shared by OpenAI's two APIs
chat       Chat Completions
responses  Responses
anthropic  Messages
models     the list of models, for clients of both
"""

from orl_gateway.dialects.anthropic import ANTHROPIC
from orl_gateway.dialects.chat import CHAT
from orl_gateway.dialects.exchange import ClientApi, ModelRequest, Reply, RequestRefused, SentCall
from orl_gateway.dialects.responses import RESPONSES

__all__ = ["ANTHROPIC", "CHAT", "RESPONSES", "ClientApi", "ModelRequest", "Reply", "RequestRefused", "SentCall"]
