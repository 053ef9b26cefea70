"""A stand-in for SGLang's load generator on an agentic trace, as far as the benchmark relies on it, with its flags.

It has no chat endpoint to talk to: it renders each conversation as a server would, with answers of as many words as are
asked for, and posts the ids. With FAILING as its first argument it fails.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from pathlib import Path
from typing import Any

import aiohttp
from transformers import AutoTokenizer


async def play(chosen: argparse.Namespace, plays: list[list[dict[str, Any]]]) -> dict[str, Any]:
    hf = AutoTokenizer.from_pretrained(chosen.model)
    params = {"max_new_tokens": chosen.sharegpt_output_len, "ignore_eos": True}
    completed = cached = 0
    async with aiohttp.ClientSession() as http:
        for turns in plays[: chosen.num_prompts]:
            messages: list[dict[str, str]] = []
            for turn in turns:
                messages += turn["messages"]
                text = hf.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
                ids = hf.encode(str(text), add_special_tokens=False)
                body = {"input_ids": ids, "sampling_params": params, **json.loads(chosen.extra_request_body)}
                async with http.post(f"{chosen.base_url}/generate", json=body) as response:
                    answer = await response.json()
                messages.append({"role": "assistant", "content": hf.decode(answer["output_ids"])})
                completed += 1
                cached += answer["meta_info"]["cached_tokens"]
    return {
        "duration": 1.0,
        "completed": completed,
        "total_output_tokens": completed * chosen.sharegpt_output_len,
        "cache_report": {"total_cached_tokens": cached},
    }


def main() -> None:
    if "FAILING" in sys.argv:
        sys.exit("no GPU")
    parser = argparse.ArgumentParser()
    for name in ("--backend", "--base-url", "--model", "--tokenizer", "--dataset-path", "--output-file"):
        parser.add_argument(name, required=True)
    parser.add_argument("--extra-request-body", required=True)
    parser.add_argument("--dataset-name", choices=["agentic-trace"], required=True)
    for name in ("--num-prompts", "--max-concurrency", "--sharegpt-output-len"):
        parser.add_argument(name, type=int, required=True)
    for name in ("--disable-stream", "--disable-tqdm", "--flush-cache", "--cache-report"):
        parser.add_argument(name, action="store_true", required=True)
    chosen = parser.parse_args()
    trace = json.loads(Path(chosen.dataset_path).read_text(encoding="utf-8"))
    result = asyncio.run(play(chosen, trace["conversations"]))
    Path(chosen.output_file).write_text(json.dumps(result) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
