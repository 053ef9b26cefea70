"""Dialects: the APIs that agents speak, as pure functions from the wire and to it.

exchange      ModelRequest, Reply, RequestRefused: what a request and its reply are
reading       fields and contents, shared by the readers
conversation  messages in the form of ModelRequest, and the memory of what an episode's client sent before
client_api    ClientApi: the functions of one API
openai        shared by OpenAI's two APIs
chat          Chat Completions
responses     Responses
anthropic     Messages
models        the list of models, for clients of both
"""

from orl_gateway.dialects.anthropic import ANTHROPIC
from orl_gateway.dialects.chat import CHAT
from orl_gateway.dialects.client_api import ClientApi
from orl_gateway.dialects.conversation import History
from orl_gateway.dialects.exchange import Link, ModelRequest, Reply, RequestRefused, SentCall
from orl_gateway.dialects.responses import RESPONSES

__all__ = [
    "ANTHROPIC",
    "CHAT",
    "RESPONSES",
    "ClientApi",
    "History",
    "Link",
    "ModelRequest",
    "Reply",
    "RequestRefused",
    "SentCall",
]
