"""Ask a vLLM server once for each thing that orl needs of it: python3 vllm_probe.py PORT_OR_SOCKET [MODEL_FOLDER]

Prints one line a request. With MODEL_FOLDER the weights of the folder are sent by CUDA IPC, packed, as orl's trainer does.
The exit code is the number of answers that are not as expected.
"""

import http.client
import json
import os
import socket
import sys
import time

where, folder = sys.argv[1], sys.argv[2] if len(sys.argv) > 2 else ""
wrong = 0


class Connection(http.client.HTTPConnection):
    def connect(self):
        if where.startswith("/"):
            self.sock = socket.socket(socket.AF_UNIX)
            self.sock.settimeout(self.timeout)
            self.sock.connect(where)
        else:
            super().connect()


def ask(method, path, body=None, expected=200, shown=True, seconds=120):
    global wrong
    link, began = Connection("127.0.0.1", 80 if where.startswith("/") else int(where), timeout=seconds), time.monotonic()
    try:
        link.request(method, path, None if body is None else json.dumps(body), {"content-type": "application/json"})
        reply = link.getresponse()
        status, text = reply.status, reply.read().decode()
    except OSError as exc:
        status, text = 0, repr(exc)
    finally:
        link.close()
    wrong += status != expected
    mark = "" if status == expected else f"  <== expected {expected}"
    print(f"{status} {method} {path} {time.monotonic() - began:.2f}s {text[:300] if shown or mark else ''}{mark}", flush=True)
    try:
        return json.loads(text)
    except ValueError:
        return {}


def check(said, holds):
    global wrong
    wrong += not holds
    print(f"{'yes' if holds else 'NO '} {said}", flush=True)


def generate(expected=200, **params):
    sampling = {"max_tokens": 8, "temperature": 1.0, "seed": 1, "logprobs": 0, "detokenize": False, "skip_special_tokens": False}
    body = {"token_ids": [1, 504, 2365, 282], "sampling_params": sampling | params}
    choice = (ask("POST", "/inference/v1/generate", body, expected, shown=False).get("choices") or [{}])[0]
    content = (choice.get("logprobs") or {}).get("content") or []
    ids, logprobs = choice.get("token_ids"), [one["logprob"] for one in content]
    if expected == 200:
        print(f"    ids {ids} logprobs {[round(x, 4) for x in logprobs]} finish {choice.get('finish_reason')} "
              f"versions {choice.get('weight_versions')}")
        check("each id has its own logprob", bool(ids) and [one.get("token_id") for one in content] == ids)
    return ids, logprobs, choice.get("weight_versions")


def checksums():
    return ask("POST", "/weight_checker", {"action": "checksum"}, shown=False).get("checksums", {})


def push(version):
    """Send every tensor of the folder by CUDA IPC, packed."""
    from pathlib import Path

    import torch
    from safetensors.torch import load_file
    from vllm.distributed.weight_transfer.clients import _json_safe_update_info
    from vllm.distributed.weight_transfer.packed_tensor import packed_ipc_producer

    tensors = [item for file in sorted(Path(folder).glob("*.safetensors")) for item in load_file(file, "cuda").items()]
    uuid = str(torch.cuda.get_device_properties(0).uuid)
    ask("POST", "/pause?mode=wait")
    ask("POST", "/init_weight_transfer_engine", {"init_info": {"packed": True}})
    ask("POST", "/start_weight_update")
    for chunk in packed_ipc_producer(iter(tensors), uuid, lambda item: item[1].bfloat16()):
        info = {
            "names": chunk.names, "dtype_names": chunk.dtype_names, "shapes": chunk.shapes,
            "ipc_handles": chunk.ipc_handle, "tensor_sizes": chunk.tensor_sizes,
        }  # fmt: skip
        ask("POST", "/update_weights", {"update_info": _json_safe_update_info(info)})
    ask("POST", "/finish_weight_update", {"weight_version": version})
    ask("POST", "/resume")


ask("GET", "/version")
ask("GET", "/v1/models")
first = generate()
again = generate()
check("the same seed gives the same ids", first[0] == again[0])
sure = generate(max_tokens=1, allowed_token_ids=[0])
check("one allowed id has logprob 0 (processed_logprobs)", bool(sure[1]) and abs(sure[1][0]) < 1e-3)
ask("POST", "/update_weight_version", {"new_version": "7"})
ask("GET", "/weight_info")
versions = generate()[2]
check("weight_versions names 7", bool(versions) and versions[0].get("version") == "7")
ask("POST", "/pause?mode=wait")
ask("GET", "/is_paused")
generate(expected=503)
ask("POST", "/resume")
before = checksums()
print(f"    {len(before)} checksums, such as {next(iter(before.items()), None)}")
check("there are checksums", bool(before))
ask("POST", "/reset_prefix_cache")
if folder:
    push("8")
    check("checksums are the same after the weights were sent", checksums() == before)
    check("weight_versions names 8", (generate()[2] or [{}])[0].get("version") == "8")
if not os.environ.get("NOSLEEP"):
    ask("POST", "/sleep?level=2&mode=abort")
    ask("GET", "/is_sleeping")
    ask("POST", "/wake_up?tags=weights")
    ask("POST", "/collective_rpc", {"method": "reload_weights"})
    check("checksums are the same after sleep and reload", checksums() == before)
    ask("POST", "/wake_up?tags=kv_cache")
    ask("POST", "/resume")
    last = generate()
    check("ids are those of before", last[0] == first[0])
print(f"{wrong} not as expected")
sys.exit(min(wrong, 99))
