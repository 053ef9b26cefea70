"""orl-core: the pure part of orl. It plays nothing, opens nothing and waits for nothing; data flows through it.

config      RunConfig and load_config: one YAML file, refused at load time when wrong
task        Task: which episode of which environment
messages    what is said: Message, ToolCall, ToolResult, ParseFailure
tools       tool formats and parsers, one file for each wire format
render      messages ⇄ token ids, append only, certified for a tokenizer
limits      what a rollout may use, and which of its tokens may train
trajectory  what was played: Generation, Turn, Trajectory, StopReason
datum       what trains: Datum, to_data
reward      reduce_reward, group_advantages
text        text from outside, made valid and visible
errors      the tree of OrlError, and boundary
"""
