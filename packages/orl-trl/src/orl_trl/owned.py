"""Fields of GRPOConfig that a user cannot set, each with the reason: flags are refused rather than ignored.

orl owns what a step is, the engine, the files and the evaluation. Some fields would mean nothing here.
"""

from __future__ import annotations

from dataclasses import fields

from trl.trainer.grpo_config import GRPOConfig

from orl_trl.importance import FIELDS

NAMES = frozenset(field.name for field in fields(GRPOConfig))

_UNSAMPLED = "the engine samples by `temperature` and `top_p` alone"
_NOT_TRLS = "TRL does not sample, orl's engine does"
_EVALUATION = "orl measures, by the section `eval`"
_ONE_PROCESS = "trl trains in one process. Train on several GPUs with slime or miles"
_GROUPS = {
    _EVALUATION: (
        "batch_eval_metrics bf16_full_eval do_eval do_predict eval_accumulation_steps eval_delay "
        "eval_do_concat_batches eval_on_start eval_steps eval_strategy eval_use_gather_object fp16_full_eval "
        "greater_is_better include_for_metrics load_best_model_at_end metric_for_best_model "
        "per_device_eval_batch_size prediction_loss_only"
    ),
    _ONE_PROCESS: (
        "accelerator_config average_tokens_across_devices ddp_backend ddp_broadcast_buffers ddp_bucket_cap_mb "
        "ddp_find_unused_parameters ddp_static_graph ddp_timeout deepspeed ds3_gather_for_generation fsdp fsdp_config "
        "local_rank log_level_replica log_on_each_node parallelism_config save_on_each_node"
    ),
    "orl loads `model`, and no code that it brings": "model_init_kwargs trust_remote_code",
    "`wandb_mode` and `tensorboard` set it": (
        "project report_to trackio_bucket_id trackio_space_id trackio_static_space_id"
    ),
    "`seed` sets it": "data_seed",
    "`max_tokens_per_gpu` sets it, and is halved when memory runs out": "auto_find_batch_size",
    "`max_turns` of an environment sets it": "max_tool_calling_iterations",
    "orl orders the tasks": "length_column_name train_sampling_strategy",
    "the loss of GRPO has no labels": "label_names label_smoothing_factor",
    "each micro-batch would take a quantile of its own, and not that of the pass": "top_entropy_quantile",
    "orl trains": "do_train",
}
OWNED = {
    **{name: owner for owner, names in _GROUPS.items() for name in names.split()},
    "output_dir": "it is the run's folder",
    "num_generations": "`n_samples` sets it",
    "generation_batch_size": "`rollout_batch_size` sets it",
    "max_steps": "`num_rollout` sets it",
    "num_train_epochs": "`num_rollout` sets it",
    "logging_steps": "every step is logged",
    "logging_strategy": "every step is logged",
    "save_strategy": "`save_interval` sets it",
    "save_steps": "`save_interval` sets it",
    "use_vllm": _NOT_TRLS,
    "use_transformers_continuous_batching": _NOT_TRLS,
    "use_transformers_paged": _NOT_TRLS,
    "transformers_continuous_batching_config": _NOT_TRLS,
    "cache_implementation": _NOT_TRLS,
    **{name: _NOT_TRLS for name in sorted(NAMES - FIELDS) if name.startswith("vllm_")},
    "num_generations_eval": "`eval.samples` sets it",
    "chat_template_kwargs": "`chat_template_kwargs` in the file sets it",
    "max_completion_length": "`rollout.turn_tokens` sets it, or --max-response-len before `--`",
    "top_k": _UNSAMPLED,
    "min_p": _UNSAMPLED,
    "repetition_penalty": _UNSAMPLED,
    "generation_kwargs": _UNSAMPLED,
    "optim": "`optimizer` sets it",
    "resume_from_checkpoint": "`load` sets it",
    "ignore_data_skip": "a run that `load` continues keeps the order of its tasks",
}
