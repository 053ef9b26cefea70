"""Fields of GRPOConfig that a user cannot set, each with the reason: flags are refused rather than ignored.

orl owns what a step is, the engine, the files and the evaluation. Some fields would mean nothing here.
"""

from __future__ import annotations

import re
from dataclasses import fields

from trl.trainer.grpo_config import GRPOConfig

NAMES = frozenset(field.name for field in fields(GRPOConfig))

GROUPS = {  # regular expressions of names
    "orl measures, by the section `eval`": (
        "eval_.*|do_eval|do_predict|.*_full_eval|.*_eval|batch_eval_metrics|per_device_eval_batch_size|greater_is_better"
        "|include_for_metrics|load_best_model_at_end|metric_for_best_model|prediction_loss_only"
    ),
    "trl trains in one process. Train on several GPUs with slime or miles": (
        "accelerator_config|average_tokens_.*|ddp_.*|deepspeed|ds3_.*|fsdp.*|local_rank|log_level_replica"
        "|log_on_each_node|parallelism_config|save_on_each_node"
    ),
    "TRL does not sample, orl's engine does, by `temperature` and `top_p`": (
        "cache_implementation|generation_kwargs|min_p|repetition_penalty|top_k|.*transformers_.*|use_vllm"
        "|vllm_(?!importance_).*"  # the correction of importance is obeyed with every engine
    ),
    "orl loads `model`, and no code that it brings": "model_init_kwargs|trust_remote_code",
    "orl chooses the order of tasks, and writes to the run's folder": (
        "do_train|ignore_data_skip|length_column_name|output_dir|train_sampling_strategy"
    ),
    "`wandb_mode` and `tensorboard` set it": "project|report_to|trackio_.*",
    "`seed` sets it": "data_seed",
    "`max_tokens_per_gpu` sets it, and is halved when memory runs out": "auto_find_batch_size",
    "`max_turns` of an environment sets it": "max_tool_calling_iterations",
    "the loss of GRPO has no labels": "label_.*",
    "each micro-batch would take a quantile of its own, and not that of the pass": "top_entropy_quantile",
    "`n_samples` sets it": "num_generations",
    "`rollout_batch_size` sets it": "generation_batch_size",
    "`num_rollout` sets it": "max_steps|num_train_epochs",
    "every step is logged": "logging_steps|logging_strategy",
    "`save_interval` sets it": "save_strategy|save_steps",
    "`chat_template_kwargs` in the file sets it": "chat_template_kwargs",
    "`rollout.turn_tokens` sets it, or --max-response-len before `--`": "max_completion_length",
    "`optimizer` sets it": "optim",
    "`load` sets it": "resume_from_checkpoint",
}
OWNED = {name: owner for owner, names in GROUPS.items() for name in NAMES if re.fullmatch(names, name)}
