"""Words of a command line that look like a secret are refused by their names alone; ordinary ones pass."""

from __future__ import annotations

import pytest
from orl_core.credentials import refuse_on_command_line
from orl_core.errors import ConfigError

SECRET_NAMES = [
    *("--openai-key", "--anthropic-key", "--aws-key", "--deploy-key", "--session-key", "--jwt", "--cookie", "--creds"),
    *("--pass", "--dsn", "--otp", "--github-pat", "--pw"),
    *("--api-keys", "--dbpassword", "--authtoken", "--secretkey", "--hftoken", "--admin-api-key", "--x-auth-token"),
]
SECRET_VALUES = [
    *('{"WANDB_API_KEY":"hush"}', "HF_TOKEN=hush", "Authorization: Bearer hush", "https://hush@host/x"),
    *("https://host/x?access_token=hush", "{'a': {'openai_key': 'hush'}}"),
    *("Bearer hush-hush", "basic aHVzaDpodXNo"),
]
ORDINARY_NAMES = [
    *("--input-key", "--label-key", "--metadata-key", "--tool-key", "--reward-key", "--eval-reward-key", "--n-pass"),
    *(
        "--multimodal-keys",
        "--eval-input-key",
        "--forward-pass",
        "--max-token",
        "--response-token",
        "--author",
    ),
    *("--assistant-token", "--tool-token", "--vision-token", "--eos-token", "--stop-token-ids", "--max-tokens-per-gpu"),
    *("--log-passrate", "--moe-token-dispatcher-type", "--apply-chat-template", "--skip-tokenizer-init", "--sglang-tp"),
]
ORDINARY_VALUES = [
    *("aime", "/data/aime.jsonl@[0:100]", '{"enable_thinking": false, "eos_token": "x", "use_auth": true}', "key: 3"),
    *("http://127.0.0.1:30000", "a.b:c", "input_key=prompt", "s3://bucket/x@1"),
]


@pytest.mark.parametrize(
    "words",
    [
        *(["--wandb-key", "hush"], ["--lr", "1", "--db-pass=hush"], ["--host", "http://a:hush@b"], ["--TOKEN", "hush"]),
        *([name, "hush"] for name in SECRET_NAMES),
        *(["--x", value] for value in SECRET_VALUES),
        *([f"--x={value}"] for value in SECRET_VALUES),
    ],
)
def test_secret_among_arguments_is_refused_by_name_alone(words: list[str]):
    with pytest.raises(ConfigError) as caught:
        refuse_on_command_line(words)
    assert "hush" not in str(caught.value)
    refuse_on_command_line(
        ["--use-token", "--pad-token", "x", "--input-key", "prompt", "--host", "http://b", "--token"]
    )


@pytest.mark.parametrize("words", [*([name, "x"] for name in ORDINARY_NAMES), *(["--x", it] for it in ORDINARY_VALUES)])
def test_ordinary_arguments_of_a_trainer_pass(words: list[str]):
    refuse_on_command_line(words)
