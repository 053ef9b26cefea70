"""Fields of GRPOConfig that a user cannot set, each with what sets it instead: flags are refused rather than ignored.

orl owns what a step is, the engine, the files and the evaluation. Some fields would mean nothing here.
"""

from __future__ import annotations

from dataclasses import fields

from trl.trainer.grpo_config import GRPOConfig

from orl_trl.importance import FIELDS

NAMES = frozenset(field.name for field in fields(GRPOConfig))

_UNSAMPLED = "nothing: the engine samples by `temperature` and `top_p` alone"
_NOT_TRLS = "nothing: TRL does not sample, orl's engine does"
_EVALUATION = "the section `eval`: orl measures, TRL does not"
_ONE_PROCESS = "nothing: trl trains in one process. Train on several GPUs with slime or miles"
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
    "`model`: orl loads it, and no code that it brings": "model_init_kwargs trust_remote_code",
    "`wandb_mode` and `tensorboard`": "project report_to trackio_bucket_id trackio_space_id trackio_static_space_id",
    "`seed`": "data_seed",
    "`max_tokens_per_gpu`, which is halved when memory runs out": "auto_find_batch_size",
    "`max_turns` of an environment": "max_tool_calling_iterations",
    "nothing: orl orders the tasks": "length_column_name train_sampling_strategy",
    "nothing: the loss of GRPO has no labels": "label_names label_smoothing_factor",
    "nothing: orl trains": "do_train",
}
OWNED = {
    **{name: owner for owner, names in _GROUPS.items() for name in names.split()},
    "output_dir": "the run's folder",
    "num_generations": "`n_samples`",
    "generation_batch_size": "`rollout_batch_size`",
    "max_steps": "`num_rollout`",
    "num_train_epochs": "`num_rollout`",
    "logging_steps": "nothing: every step is logged",
    "logging_strategy": "nothing: every step is logged",
    "save_strategy": "`save_interval`",
    "save_steps": "`save_interval`",
    "use_vllm": _NOT_TRLS,
    "use_transformers_continuous_batching": _NOT_TRLS,
    "use_transformers_paged": _NOT_TRLS,
    "transformers_continuous_batching_config": _NOT_TRLS,
    "cache_implementation": _NOT_TRLS,
    **{name: _NOT_TRLS for name in sorted(NAMES - FIELDS) if name.startswith("vllm_")},
    "num_generations_eval": "`eval.samples`",
    "chat_template_kwargs": "`chat_template_kwargs` in the file",
    "max_completion_length": "`rollout.turn_tokens`, or --max-response-len before `--`",
    "top_k": _UNSAMPLED,
    "min_p": _UNSAMPLED,
    "repetition_penalty": _UNSAMPLED,
    "generation_kwargs": _UNSAMPLED,
    "optim": "`optimizer`",
    "resume_from_checkpoint": "`load`",
    "ignore_data_skip": "nothing: a run that `load` continues keeps the order of its tasks",
}
