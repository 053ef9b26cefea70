"""orl-rollout: the effects of orl. It plays tasks against engines and environments, and knows no trainer.

loop        rollout(): one episode, thirteen promises
engine      the Engine protocol; sglang is SGLang behind it
session     the Session protocol; openreward is OpenReward behind it
tokenizer   a Hugging Face tokenizer for the renderer
tasks       prepare and read tasks.jsonl
runtime     what rollouts share: play, judge, record, count
outcome     a trajectory with its reward and data, and metrics of a batch
journal     every trajectory on disk; upload sends them on
secrets     where values come from, and scrubbing their echoes
interrupt   SIGINT, SIGTERM and SIGHUP, never lost; children: processes that end with what asked for them
run         what the launcher hands to a trainer
testing     scripted fakes and stand-in servers
"""
