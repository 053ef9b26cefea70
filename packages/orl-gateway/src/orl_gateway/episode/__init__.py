"""One episode of an agent.

episode   Episode: owns session, tree and budgets; ask, count, call, finish, trajectory
tree      where a request continues, and what was sampled there; matching: which requests say the same
replies   from an action to the reply that an agent gets
retries   a repeated request gets the same answer
allowance turns, time and ids of one episode; state: its ending and its fault
tool_side the environment's tools, and their results
"""
