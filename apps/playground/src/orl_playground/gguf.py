"""A Llama model in a GGUF file, as a Hugging Face checkpoint.

transformers reads the weights and the tokenizer. Which tokens end and pad a text is taken from the file itself, because
versions of transformers differ in it.
"""

from __future__ import annotations

import importlib
from contextlib import redirect_stderr
from io import StringIO
from pathlib import Path
from typing import Any, cast

import torch
import transformers
from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig, LlamaForCausalLM

TOKENS = {"eos": "eos_token_id", "bos": "bos_token_id", "pad": "padding_token_id"}  # as the file names them


def convert(file: Path, folder: Path) -> None:
    """Write the Llama model in a GGUF `file` as a Hugging Face checkpoint in bf16 into `folder`."""
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    with redirect_stderr(StringIO()):  # it has a progress bar of its own
        fields = importlib.import_module("gguf").GGUFReader(file).fields
        ids = {
            name: int(fields[f"tokenizer.ggml.{key}"].contents())
            for name, key in TOKENS.items()
            if f"tokenizer.ggml.{key}" in fields
        }
        tokenizer: Any = AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name, trust_remote_code=False)
        for name, token in ids.items():
            setattr(tokenizer, f"{name}_token", tokenizer.convert_ids_to_tokens(token))
        tokenizer.save_pretrained(folder)
        loaded: Any = AutoModelForCausalLM.from_pretrained(
            file.parent, gguf_file=file.name, dtype=torch.float32, trust_remote_code=False
        )
        config = loaded.config
        vars(config).pop("quantization_config", None)  # the weights are no longer quantized
        config.rms_norm_eps = float(f"{config.rms_norm_eps:.6g}")  # a float32: slime compares it with 1e-5 exactly
        for name, token in ids.items():
            setattr(config, f"{name}_token_id", token)
        model = LlamaForCausalLM(config)
        model.load_state_dict(loaded.state_dict())
        model.generation_config = GenerationConfig(**{f"{name}_token_id": token for name, token in ids.items()})
        cast("Any", model).to(torch.bfloat16).save_pretrained(folder)
