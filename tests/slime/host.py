"""Real slime's rollout code on a CPU: data source, rollout function and conversion to training data, no Ray, no GPU.

What slime imports from SGLang, and from its queue, is stubbed: names only, never called here.
"""

from __future__ import annotations

import importlib
import sys
from argparse import Namespace
from pathlib import Path
from types import ModuleType
from typing import Any

from orl_cluster.launch.machine.probe import finds
from orl_slime.probe import EVALUATES, features_of

from tests.slime.playing import close_loop

STUBS = {
    "sglang": (),
    "sglang.srt": (),
    "sglang.srt.constants": (
        "GPU_MEMORY_TYPE_CUDA_GRAPH",
        "GPU_MEMORY_TYPE_KV_CACHE",
        "GPU_MEMORY_TYPE_WEIGHTS",
    ),
    "sglang.srt.server_args": ("ServerArgs",),
    "sglang.srt.utils": ("kill_process_tree",),
    "sglang_router": (),
    "sglang_router.launch_router": ("RouterArgs",),
    "slime.data.tensor": ("TensorRef",),
    "straw": (),
    "straw.protocol": ("CommitReceipt",),
}


def install_stubs() -> None:
    for name, attributes in STUBS.items():
        if name not in sys.modules:
            module = sys.modules[name] = ModuleType(name)
            module.__dict__["__version__"] = "0.3.0"  # of the router, which slime 0.3.0 asks for
            for attribute in attributes:
                setattr(module, attribute, type(attribute, (), {}))


# What slime moved to a folder of its own after 0.3.1, and its place until then.
MOVED = {
    "slime.observability.rollout_data_utils.": "slime.ray.rollout._",
    "slime.observability.rollout_metrics.log": "slime.ray.rollout._log",
    "slime.observability.rollout_metrics.": "slime.ray.rollout.",
    "slime.observability.": "slime.utils.",
}


def of_slime(name: str) -> Any:
    """Return what slime has under a dotted name, or under the one that it had until 0.3.1."""
    install_stubs()
    if not finds("slime.observability"):
        old = next((old for old in MOVED if name.startswith(old)), "")
        name = MOVED.get(old, "") + name.removeprefix(old)
    module, _, attribute = name.rpartition(".")
    package = importlib.import_module(module)
    return getattr(package, attribute, None) or importlib.import_module(name)


def validated(samples: list[Any]) -> None:
    """Let slime validate what its rollout function returned. Until 0.3.0 the identity is named `group_id`."""
    manager = of_slime("slime.ray.rollout")
    old = getattr(manager, "_validate_group_id_annotated", None)
    (old or of_slime("slime.observability.rollout_data_utils.validate_rollout_id_annotated"))(samples)


_DATA = {
    "input_key": "prompt",
    "label_key": "label",
    "metadata_key": "metadata",
    "tool_key": None,
    "multimodal_keys": None,
    "apply_chat_template": False,
    "apply_chat_template_kwargs": None,
    "rollout_global_dataset": True,
    "rollout_shuffle": False,
    "rollout_seed": 0,
    "rollout_max_prompt_len": None,
    "dump_details": None,
    "buffer_filter_path": None,
}
_ENGINES = {
    "rollout_data_transport": "object-store",
    "rollout_health_check_timeout": 10.0,
    "sglang_server_concurrency": 64,
    "rollout_num_gpus": 1,
    "rollout_num_gpus_per_engine": 1,
    "rollout_num_engines": 1,
    "rollout_external": False,
    "sglang_dp_size": 1,
    "sglang_enable_deterministic_inference": False,
    "sglang_speculative_algorithm": None,
    "router_policy": None,
    "use_distributed_post": False,
    "use_rollout_routing_replay": False,
}
_ROLLOUTS = {
    "n_samples_per_prompt": 2,
    "rollout_batch_size": 2,
    "over_sampling_batch_size": 2,
    "rollout_max_context_len": 2000,
    "rollout_max_response_len": 200,
    "rollout_temperature": 1.0,
    "rollout_top_p": 1.0,
    "rollout_top_k": -1,
    "rollout_stop": None,
    "rollout_stop_token_ids": None,
    "rollout_skip_special_tokens": False,
    "partial_rollout": False,
    "mask_offpolicy_in_partial_rollout": False,
    "eval_max_context_len": 2000,
    "eval_max_prompt_len": None,
    "eval_reward_key": None,
    "ci_test": False,
}
_HOOKS = {
    "custom_generate_function_path": "orl_slime.generate.generate",
    "rollout_function_path": "slime.rollout.sglang_rollout.generate_rollout",
    "custom_rm_path": None,
    "rm_type": None,
    "group_rm": False,
    "reward_key": None,
    "log_reward_category": None,
    "dynamic_sampling_filter_path": None,
    "rollout_sample_filter_path": None,
    "rollout_all_samples_process_path": None,
    "rollout_sample_hook_path": None,
    "custom_rollout_log_function_path": "orl_slime.hooks.log_rollout",
    "custom_eval_rollout_log_function_path": "orl_slime.hooks.log_eval",
    "custom_reward_post_process_path": "orl_slime.hooks.post_process",
    "custom_convert_samples_to_train_data_path": None,
}
_TRACKING = {
    "use_wandb": False,
    "use_tensorboard": False,
    "wandb_always_use_train_step": False,
    "load_debug_rollout_data": None,
    "log_passrate": False,
}
_ESTIMATOR = {"advantage_estimator": "grpo", "rewards_normalization": True, "grpo_std_normalization": True}
_DEFAULTS: dict[str, Any] = _DATA | _ENGINES | _ROLLOUTS | _HOOKS | _TRACKING | _ESTIMATOR


def features() -> list[str]:
    """Return what our probe finds in the checkout."""
    return features_of(str(Path(of_slime("slime.__file__")).parents[1]))


def sources() -> str:
    """Return slime's module of data sources."""
    return "slime.data.data_source" if finds("slime.data.data_source") else "slime.rollout.data_source"


def converter(args: Namespace) -> Any:
    """Return what makes training data of samples: a BatchBuilder where slime has one, else the manager.

    The manager converts where routing is replayed: the BatchBuilder reads fields that only the newest Sample has.
    """
    if finds("slime.data.batch_builder") and not args.use_rollout_routing_replay:
        return of_slime("slime.data.batch_builder.BatchBuilder")(args).convert
    manager = object.__new__(of_slime("slime.ray.rollout.RolloutManager").__ray_metadata__.modified_class)
    manager.args, manager.custom_convert_samples_to_train_data_func = args, None
    post_process = args.custom_reward_post_process_path
    manager.custom_reward_post_process_func = of_slime(post_process) if post_process else None
    return manager._convert_samples_to_train_data


def arguments(checkpoint: Path, tasks: Path, engine_url: str, orl_config: dict[str, Any], **changes: Any) -> Namespace:
    """slime's parsed arguments, as far as its rollout code reads them."""
    host, _, port = engine_url.removeprefix("http://").partition(":")
    fields: dict[str, Any] = {
        "hf_checkpoint": str(checkpoint),
        "data_source_path": f"{sources()}.RolloutDataSourceWithBuffer",
        "prompt_data": str(tasks),
        "sglang_router_ip": host,
        "sglang_router_port": int(port),
        "orl_config": orl_config,
    }
    return Namespace(**_DEFAULTS | fields | changes)


class Host:
    """One process's worth of slime, its singletons made anew."""

    def __init__(self, args: Namespace) -> None:
        install_stubs()
        from slime.utils import http_utils
        from slime.utils.misc import SingletonMeta, load_function

        http_utils._http_client = None
        SingletonMeta._instances = {}
        http_utils.init_http_client(args)
        self.args = args
        self.source = load_function(args.data_source_path)(args)
        self.metrics: dict[str, Any] | None = None

    def rollout(self, rollout_id: int = 0) -> list[list[Any]]:
        """The groups of one rollout, as slime's manager gets them."""
        from slime.rollout.base_types import call_rollout_fn
        from slime.utils.misc import load_function

        output = call_rollout_fn(
            load_function(self.args.rollout_function_path), self.args, rollout_id, self.source, evaluation=False
        )
        validated(output.samples)
        self.metrics = output.metrics
        return output.samples

    def evaluate(self, rollout_id: int = 0) -> dict[str, Any]:
        """The evaluated datasets of `args.eval_datasets`, as slime's manager gets them."""
        from slime.rollout.base_types import call_rollout_fn
        from slime.utils.misc import load_function

        own = EVALUATES in features()  # else --eval-function-path has to name the other
        path = self.args.rollout_function_path if own else "slime.rollout.sglang_rollout.generate_rollout"
        return call_rollout_fn(load_function(path), self.args, rollout_id, self.source, evaluation=True).data

    def train_data(self, groups: list[list[Any]]) -> dict[str, Any]:
        """Return what the trainer gets."""
        return converter(self.args)(_flat(groups))

    def log(self, groups: list[list[Any]], rollout_id: int = 0) -> None:
        """Do what the manager does with the groups before it converts them."""
        log_rollout_data = of_slime("slime.observability.rollout_metrics.log_rollout_data")
        log_rollout_data(rollout_id, self.args, _flat(groups), self.metrics, 1.0)

    def hold_out(self, name: str, path: Path, *, apply_chat_template: bool = False) -> None:
        """Make `path` the one dataset that is evaluated, as slime's arguments would."""
        from slime.utils.eval_config import EvalDatasetConfig

        dataset = EvalDatasetConfig(name=name, path=str(path), n_samples_per_eval_prompt=2)
        dataset.input_key, dataset.label_key, dataset.metadata_key = "prompt", "label", "metadata"
        dataset.temperature, dataset.top_p, dataset.top_k, dataset.max_response_len = 1.0, 1.0, -1, 200
        dataset.custom_rm_path = self.args.custom_rm_path
        dataset.apply_chat_template = apply_chat_template
        self.args.eval_datasets = [dataset]

    def log_evaluation(self, data: dict[str, Any], rollout_id: int = 0) -> None:
        """Do what the manager does with what was evaluated."""
        log_eval_rollout_data = of_slime("slime.observability.rollout_metrics.log_eval_rollout_data")
        log_eval_rollout_data(rollout_id, self.args, data, None)

    def close(self) -> None:
        """Close what the background loop holds, ours and slime's."""
        from slime.utils import http_utils
        from slime.utils.async_utils import run

        run(close_loop(http_utils))


def _flat(groups: list[Any]) -> list[Any]:
    while isinstance(groups[0], list):
        groups = [sample for group in groups for sample in group]
    return groups
