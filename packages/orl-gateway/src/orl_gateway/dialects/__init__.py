"""Dialects: the APIs that agents speak, as pure functions from the wire and to it.

exchange    what a request and its reply are, and the memory of what an episode's client sent before
client_api  ClientApi: the functions of one API, and what several of them share
chat        Chat Completions
responses   Responses
anthropic   Messages
"""
