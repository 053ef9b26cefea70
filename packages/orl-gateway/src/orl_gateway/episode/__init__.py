"""One episode of an agent.

episode   Episode: owns session, tree and budgets; ask, count, call, finish, trajectory
tree      where a request continues, and what was sampled there; which requests say the same
replies   from an action to the reply that an agent gets
work      tasks that outlive their clients; a repeated request gets the same answer
state     its ending or its fault; turns, time and ids that are left
tool_side the environment's tools, and their results
"""
