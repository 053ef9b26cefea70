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
