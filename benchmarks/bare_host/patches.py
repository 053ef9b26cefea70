"""`python -m benchmarks.bare_host.patches FOLDER`: patch the checkouts FOLDER/slime, FOLDER/miles and FOLDER/megatron.

Patch each checkout once. Megatron's local layers have a norm apart from the linear layer, and each expert apart. They
work with numpy 2. Without TransformerEngine a name of the router is missing. The Megatron of miles replays routing for
miles alone. SGLang of PyPI lacks the fork's weight sessions and peer-to-peer copies.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

SLIME, MILES = (f"{name}/{name}/backends/megatron_utils/" for name in ("slime", "miles"))
MOE = "megatron/megatron/core/transformer/moe/"
NORMS = """\\g<0>
{indent}rest = {{
{indent}    "input_layernorm.weight": "self_attention.linear_qkv.layer_norm_weight",
{indent}    "pre_mlp_layernorm.weight": "mlp.linear_fc1.layer_norm_weight",
{indent}}}.get(rest, rest)"""
EXPERTS = r"""\1of_one = r"mlp\\.experts\\.local_experts\\.(\\d+)\\.linear_fc([12])\\.(weight|bias)$"
\1rest = re.sub(of_one, r"mlp.experts.linear_fc\\2.\\3\\1", rest)
\g<0>"""
OF_SLIME = 'if "slime" in __import__("sys").modules:'
PATCHES = [
    (SLIME + "initialize.py", r'^( *)assert np.__version__.startswith\("1."\).*', r"\1pass"),
    (SLIME + "hf_to_megatron/qwen.py", r"^    layer, rest = _layer\(name\)$", NORMS.format(indent="    ")),
    *(
        (
            f"{base}megatron_to_hf/{family}.py",
            r"^        layer_idx, rest = match.groups\(\)$",
            NORMS.format(indent=" " * 8),
        )
        for base in (SLIME, MILES)
        for family in ("qwen2", "qwen3moe", "llama")
    ),
    *(
        (base + "update_weight/common.py", r'^( *)expert_pattern = r"mlp\\?\.experts', EXPERTS)
        for base in (SLIME, MILES)
    ),
    (
        "miles/miles/backends/sglang_utils/sglang_engine.py",
        r'return self._make_request\("(begin|end)_wei.*',
        "return None",
    ),
    (MILES + "update_weight/update_weight_from_distributed/p2p.py", r"(?s).*", "class UpdateWeightP2P:\n    pass\n"),
    (
        MOE + "moe_utils.py",
        r"^class RouterGatingLinearFunction\(",
        r"try:\n    te_general_gemm\nexcept NameError:\n    te_general_gemm = None\n\n\n\g<0>",
    ),
    (
        MOE + "moe_utils.py",
        r'^    if score_function == "softmax":\n        if use_pre_softmax:',
        rf"    {OF_SLIME}\n        from slime.utils.routing_replay import get_routing_replay_compute_topk\n"
        r"        compute_topk = get_routing_replay_compute_topk(_compute_topk)\n\g<0>",
    ),
    (
        MOE + "router.py",
        r"^        routing_replay_manager.register_to_module\(self, \"routing_replay\"\)",
        rf"        {OF_SLIME}\n            from slime.utils.routing_replay import register_routing_replay\n"
        r"            register_routing_replay(self)\n        else:\n    \g<0>",
    ),
]


def main(folder: Path) -> int:
    """Apply all patches to the checkouts that are there. Return the number of those that found no place."""
    missed = 0
    for name, pattern, new in PATCHES:
        file = folder / name
        if not (folder / name.split("/")[0]).is_dir():
            continue
        text, count = re.subn(
            pattern, new, file.read_text(encoding="utf-8"), count=1 if "?s" in pattern else 0, flags=re.M
        )
        file.write_text(text, encoding="utf-8")
        if not count:
            print(f"{file}: no place for {pattern}")
            missed += 1
    return missed


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
