"""Check a vLLM on one GPU with orl's own code: start, handles, checksums, logprobs, sleep, checkpoint, restart.

    python vllm-check.py MODEL_FOLDER [--share 0.3] [words of vLLM's command, such as --enforce-eager]

It prints one line a check and ends with "ALL GOOD" and 0, or with the error.
"""

import asyncio
import os
import signal
import sys
import time
from pathlib import Path
from tempfile import mkdtemp

import torch
from orl_local.engine.control import Launch
from orl_local.engine.engine_process import EngineProcess
from orl_local.engine.served_engine import ServedEngine, Server
from orl_local.engine.vllm_control import VllmControl
from orl_local.engine.weights import SharedWeights, vllm_handles
from orl_rollout.engine_connection import Timeouts
from transformers import AutoModelForCausalLM

MODEL, *EXTRA = sys.argv[1:]
SHARE = 0.3
if EXTRA[:1] == ["--share"]:
    SHARE, EXTRA = float(EXTRA[1]), EXTRA[2:]


FULL, bound = [None], [0.0]


class Direct(SharedWeights):
    shared = 0

    async def call(self, name, *arguments):
        if name == "share":
            Direct.shared += 1
        return getattr(self, name)(*arguments)

    def stop(self):
        pass


def used():
    free, total = torch.cuda.mem_get_info()
    return (total - free) / 2**30


def good(what, fine, value=""):
    print(f"{'ok  ' if fine else 'BAD '} {what} {value}", flush=True)
    if not fine:
        raise SystemExit(f"failed: {what}")


async def difference(engine, model, version):
    """Return the largest and the mean difference of logprobs between vLLM and transformers in bf16."""
    prompt = list(range(100, 140))
    made = await engine.client().generate(
        prompt, {"max_new_tokens": 128, "temperature": 1.0, "ignore_eos": True, "sampling_seed": 3}, key=f"k{version}"
    )
    good("the version of the weights that sampled", made.weight_version == version, made.weight_version)
    ids = [*prompt, *made.token_ids]
    with torch.no_grad():
        logits = model(input_ids=torch.tensor([ids], device="cuda")).logits[0, :-1].float()
        scores = torch.log_softmax(logits, -1)
        exact = torch.log_softmax(FULL[0](input_ids=torch.tensor([ids], device="cuda")).logits[0, :-1].float(), -1)
    pick = lambda of: of.gather(1, torch.tensor(ids[1:], device="cuda")[:, None])[len(prompt) - 1 :, 0].tolist()  # noqa: E731
    mean = lambda a, b: sum(abs(x - y) for x, y in zip(a, b, strict=True)) / len(a)  # noqa: E731
    ours, full = pick(scores), pick(exact)
    bound[0] = 0.01 + mean(ours, full)
    print(f"     mean |difference|: vLLM to bf16 {mean(ours, made.logprobs):.4f}, vLLM to fp32 {mean(full, made.logprobs):.4f}, bf16 to fp32 {mean(ours, full):.4f}; mean logprob {sum(full) / len(full):.2f}")
    off = [abs(a - b) for a, b in zip(full, made.logprobs, strict=True)]
    return max(off), sum(off) / len(off)


async def main():
    folder = Path(mkdtemp(prefix="check-", dir="."))
    print("log:", (folder / "engine.log").absolute())
    launch = Launch(control=VllmControl, model=MODEL, context_tokens=1024, share=SHARE, extra=tuple(EXTRA))
    with EngineProcess(launch, folder, dict(os.environ)) as process:
        server = Server(
            control=VllmControl, url=process.url, context_tokens=1024, folder=folder / "weights", releases=True,
            own=True, timeouts=Timeouts(retry=900.0, first=900.0),
        )
        loaded = AutoModelForCausalLM.from_pretrained(MODEL, dtype=torch.float32)
        rank = Direct(loaded, handles=vllm_handles)
        async with ServedEngine(rank, server, process) as engine:
            model = rank.model = FULL[0] = loaded.cuda().eval()
            half = lambda: AutoModelForCausalLM.from_pretrained(MODEL, dtype=torch.bfloat16).cuda().eval()  # noqa: E731
            twin = half()
            control = VllmControl(process.url)
            good("it starts at a socket of this user", oct(Path(process.url[5:]).parent.stat().st_mode)[-3:] == "700")
            seconds = []
            for step in range(5):
                began = time.monotonic()
                metrics = await engine.publish(str(step))
                seconds.append(time.monotonic() - began)
                if step:
                    good(f"sync {step}", metrics.get("weights_changed", 0) > 0, f"{metrics} in {seconds[-1]:.2f} s")
                began = time.monotonic()
                shown = await control.checksums()
                took = time.monotonic() - began
                began = time.monotonic()
                rank.fingerprints()
                print(f"     checksums: vLLM's {took:.3f} s, the trainer's {time.monotonic() - began:.3f} s, "
                      f"{len(shown)} tensors, {sum(w.numel() for w in model.parameters()) / 1e6:.0f} M parameters")
                twin.load_state_dict({n: w.to(torch.bfloat16) for n, w in model.state_dict().items()})
                most, mean = await difference(engine, twin, str(step))
                good(f"logprobs after sync {step}", mean < bound[0], f"most {most:.4f}, mean {mean:.4f}")
                before = used()
                await engine.release()
                print(f"     sleep: {before:.2f} -> {used():.2f} GiB in use on the GPU")
                with torch.no_grad():
                    for weight in model.parameters():
                        weight.add_(0.002 * weight.std() * torch.randn_like(weight))
            good("weights went by handles", not (folder / "weights").exists(), f"{Direct.shared} calls of share")
            await engine.publish("5")
            by_handle = await control.checksums()
            rank.take()
            rank.write(folder / "weights")
            await control.update_from_disk(str(folder / "weights"), "5")
            await control.serve(woken=False)
            by_disk = await control.checksums()
            good("a checkpoint and handles give the same weights", by_handle == by_disk, f"{len(by_disk)} tensors")
            os.killpg(process.process.pid, signal.SIGKILL)
            metrics = await engine.publish("6")
            words = Path(f"/proc/{process.process.pid}/cmdline").read_text().split("\0")
            good("it has the first model's tokenizer", words[words.index("--tokenizer") + 1] == MODEL)
            good("a dead vLLM is started again", metrics.get("engine_restarts") == 1.0, metrics)
            good("and has the weights of now", await control.checksums() == by_disk)
            most, mean = await difference(engine, twin_of(twin, model), "6")
            good("logprobs after the restart", mean < bound[0], f"most {most:.4f}, mean {mean:.4f}")
    print("ALL GOOD")


def twin_of(twin, model):
    twin.load_state_dict({name: weight.to(torch.bfloat16) for name, weight in model.state_dict().items()})
    return twin


asyncio.run(main())
