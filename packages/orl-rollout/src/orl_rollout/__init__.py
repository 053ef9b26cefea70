"""orl-rollout: the effects of orl. It plays tasks against engines and environments, and knows no trainer.

loop        rollout(): one episode, thirteen promises; the protocols Engine and Session
sglang      SGLang behind the Engine protocol
openreward  OpenReward behind the Session protocol
results     a trajectory with its reward and data, metrics of a batch, scores of a group
journal     every trajectory on disk; upload sends them to OpenReward
tasks       prepare and read tasks.jsonl
run_folder  the files of a run: what a trainer is handed, what it writes, what reports read
runtime     many rollouts at once: play, judge, record, count
tokenizer   a Hugging Face tokenizer for the renderer
secrets     values and where they come from, and scrubbing their echoes
signals     SIGINT, SIGTERM and SIGHUP, never lost; child processes that end with this one
http        HTTP to one origin, with bounded answers
"""
