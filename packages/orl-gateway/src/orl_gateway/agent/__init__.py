"""Agents of the user's, functions and programs.

agent_player  collects a rollout with an agent: a function or a program
program       an agent that is a program
"""
