"""Real miles' rollout code on a CPU: parser, data source, rollout functions, conversion and logs; no Ray, no GPU.

`just test-miles` installs SGLang without its dependencies; two of its modules want a GPU or miles' own
fork of it, and are stubbed: names only, hardly called here. What miles would be told on the command line is parsed by
its own parser, so that a test that asks for what miles refuses fails as a launch would.
"""

from __future__ import annotations

import importlib
import json
import sys
import warnings
from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from tests.slime.playing import close_loop

STUBS: dict[str, dict[str, Any]] = {
    "sglang.srt.debug_utils.dumper": {
        "DumperConfig": Namespace(_kv_pairs_to_dict=lambda pairs: {}),
        "_get_rank": None,
        "dumper": None,
    },
    "sglang.srt.entrypoints.openai.encoding_dsv4": {},
}


def install_stubs() -> None:
    for name, attributes in STUBS.items():
        if name not in sys.modules:
            module = ModuleType(name)
            module.__dict__.update(attributes)
            package, _, last = name.rpartition(".")
            setattr(importlib.import_module(package), last, module)
            sys.modules[name] = module


def of_miles(name: str) -> Any:
    """Return what miles has under a dotted name."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # theirs, and SGLang's
        install_stubs()
        module, _, attribute = name.rpartition(".")
        package = importlib.import_module(module)
        return getattr(package, attribute, None) or importlib.import_module(name)


_FLAGS: dict[str, Any] = {
    "train_backend": "fsdp",
    "input_key": "prompt",
    "label_key": "label",
    "metadata_key": "metadata",
    "num_rollout": 1,
    "n_samples_per_prompt": 2,
    "rollout_batch_size": 2,
    "num_steps_per_rollout": 1,
    "rollout_max_context_len": 2000,
    "rollout_max_response_len": 200,
    "rollout_num_gpus": 1,
    "rollout_num_gpus_per_engine": 1,
    "actor_num_gpus_per_node": 1,
    "num_gpus_per_node": 2,
    "sglang_server_concurrency": 64,
    "sglang_router_policy": "consistent_hashing",
    "custom_reward_post_process_path": "orl_miles.hooks.post_process",
    "custom_rollout_log_function_path": "orl_miles.hooks.log_rollout",
    "custom_eval_rollout_log_function_path": "orl_miles.hooks.log_eval",
}


def parse(words: Sequence[str]) -> Namespace:
    """The arguments of a command line, by miles' own parser.

    Raises:
        SystemExit: it has none of an option, or lacks one.
    """
    parse_args = of_miles("miles.utils.arguments.parse_args")
    before, sys.argv = sys.argv, ["train.py", *words]
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return parse_args()
    finally:
        sys.argv = before


def words_of(flags: dict[str, Any]) -> list[str]:
    """The words of a command line: `{"n_samples": 2, "colocate": True}` is `--n-samples 2 --colocate`."""
    words: list[str] = []
    for name, value in flags.items():
        if value is not False:
            words.append("--" + name.replace("_", "-"))
            words += [str(one) for one in value] if isinstance(value, list) else [str(value)] * (value is not True)
    return words


def arguments(checkpoint: Path, tasks: Path, engine_url: str, settings: dict[str, Any], **flags: Any) -> Namespace:
    """miles' parsed arguments; `settings` is what `orl train` writes for `--custom-config-path`."""
    host, _, port = engine_url.removeprefix("http://").partition(":")
    path = tasks.with_name("orl.yaml")
    path.write_text(json.dumps(settings), encoding="utf-8")
    places = {
        "hf_checkpoint": checkpoint,
        "prompt_data": tasks,
        "sglang_router_ip": host,
        "sglang_router_port": port,
        "custom_config_path": path,
        "custom_generate_function_path": "orl_miles.generate.generate",
    }
    return parse(words_of(_FLAGS | places | flags))


class Host:
    """One process's worth of miles' rollout manager, its singletons made anew."""

    def __init__(self, args: Namespace) -> None:
        load_function = of_miles("miles.utils.misc.load_function")
        http_utils = of_miles("miles.utils.http_utils")
        compatibility = of_miles("miles.rollout.inference_rollout.compatibility")
        inputs = of_miles("miles.rollout.base_types")

        of_miles("miles.utils.misc.SingletonMeta").clear_all_instances()
        http_utils._http_client = None
        http_utils.init_http_client(args)
        self.args = args
        self.source = load_function(args.data_source_path)(args)
        self.metrics: dict[str, Any] | None = None
        made = inputs.RolloutFnConstructorInput(args=args, data_source=self.source)
        self._play = compatibility.load_rollout_function(made, args.rollout_function_path)

    def rollout(self, rollout_id: int = 0, weight_version: int | None = None) -> list[list[Any]]:
        """The groups of one rollout, as miles' manager gets them."""
        output = self._call("RolloutFnTrainInput", rollout_id, weight_version=weight_version)
        self.metrics = output.metrics
        for sample in flat(output.samples):
            sample.validate()
        return output.samples

    def evaluate(self, rollout_id: int = 0) -> dict[str, Any]:
        """The evaluated datasets of `--eval-prompt-data`, as miles' manager gets them."""
        data = self._call("RolloutFnEvalInput", rollout_id).data
        for one in data.values():
            for sample in one["samples"]:
                sample.validate()
        return data

    def _call(self, kind: str, rollout_id: int, **fields: Any) -> Any:
        types = of_miles("miles.rollout.base_types")
        made = getattr(types, kind)(rollout_id=rollout_id, **fields)
        return of_miles("miles.rollout.inference_rollout.compatibility.call_rollout_function")(self._play, made)

    def train_data(self, groups: list[list[Any]]) -> dict[str, Any]:
        """Return what the trainer gets."""
        postprocess = of_miles("miles.ray.rollout.rollout_data_conversion.postprocess_rollout_data")
        convert = of_miles("miles.ray.rollout.train_data_conversion.convert_samples_to_train_data")
        load_function = of_miles("miles.utils.misc.load_function")
        samples, metadata = postprocess(self.args, groups, {"dp_size": 1})
        return convert(
            self.args,
            samples,
            metadata=metadata,
            custom_convert_samples_to_train_data_func=None,
            custom_reward_post_process_func=load_function(self.args.custom_reward_post_process_path),
        )

    def log(self, groups: list[list[Any]], rollout_id: int = 0) -> None:
        """Do what the manager does with the groups before it converts them."""
        log_rollout_data = of_miles("miles.ray.rollout.metrics.log_rollout_data")
        log_rollout_data(rollout_id, self.args, flat(groups), self.metrics, 1.0)

    def log_evaluation(self, data: dict[str, Any], rollout_id: int = 0) -> None:
        """Do what the manager does with what was evaluated."""
        of_miles("miles.ray.rollout.metrics.log_eval_rollout_data")(rollout_id, self.args, data, None)

    def close(self) -> None:
        """Close what the background loop holds, ours and miles'."""

        http_utils = of_miles("miles.utils.http_utils")

        of_miles("miles.utils.async_utils.run")(close_loop(http_utils))


def flat(groups: list[Any]) -> list[Any]:
    while groups and isinstance(groups[0], list):
        groups = [sample for group in groups for sample in group]
    return groups
