"""A stand-in for a Tinker server: the routes that the public SDK calls, answered with the SDK's own messages.

Work on one model is done in the order of its `seq_id`s, and a request that comes twice is answered once. The stand-in
fails on demand, and keeps what it was sent. It knows nothing of orl, and answers every SDK since 0.25.
"""

# pyright: basic
# torch and peft are typed in part
from __future__ import annotations

import asyncio
import tempfile
from collections import defaultdict
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np
import torch
from aiohttp import web
from tinker.proto import tinker_public_pb2 as wire

from orl_testing.tinker.model import Adapted, Draw, Row, Weights, draw
from orl_testing.tinker.results import Result, Results, trace_of

WINDOW_SECONDS = 0.004  # in which sample requests gather for one batch
BACKLOG = 4096
DTYPES = {wire.DTYPE_FLOAT32: np.float32, wire.DTYPE_INT64: np.int64}
ALWAYS: dict[str, dict[str, Any]] = {
    "client_config": {},
    "client_dynamic_config": {},
    "telemetry": {"status": "accepted"},
    "healthz": {"status": "ok"},
}
Tamper = Callable[[wire.SampleResponse], None]


class _Refused(Exception):
    """A request that gets this status."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class TinkerServer:
    """A Tinker server for checkpoints on this machine, used as `async with`; `url` is set inside.

    Args:
        folder: where checkpoints are saved, so that another server can load them; None takes a temporary one.
        port: 0 takes a free one.
        older: act as servers of the time of SDK 0.25: an answer has no name, and weights are loaded into a model.

    `faults` has statuses for the next requests of a route, such as `{"asample": [429, 429]}`; 0 lets one pass. `sent`
    keeps the forward-backward requests, `steps` the Adam parameters and `draws` the sampling requests.
    `tamper` may change an answer.
    """

    def __init__(self, folder: Path | None = None, *, port: int = 0, older: bool = False) -> None:
        self._temporary = None if folder else tempfile.TemporaryDirectory()
        self._folder = folder or Path(self._temporary.name if self._temporary else "")
        self._port, self._older = port, older
        self.faults: dict[str, list[int]] = defaultdict(list)
        self.refused: dict[str, int] = defaultdict(int)
        self.sent: list[wire.ForwardBackwardRequest] = []
        self.steps: list[dict[str, Any]] = []
        self.draws: list[dict[str, Any]] = []
        self.tamper: Tamper | None = None
        self.models: dict[str, Adapted] = {}
        self._samplers: dict[str, tuple[str, Weights | None]] = {}  # checkpoint and adapters by sampling session
        self._loaded: dict[str, tuple[Adapted, str]] = {}  # by checkpoint: what samples, and whose adapters it has
        self._sessions: set[str] = set()
        self._results = Results()
        self._waiting: list[tuple[str, Draw, Result]] = []
        self._count = 0
        self._sampling = asyncio.Lock()

    async def __aenter__(self) -> Self:
        app = web.Application(client_max_size=1 << 30)
        app.router.add_route("*", "/api/v1/{route:.*}", self._serve)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.05)
        await self._runner.setup()
        await self.up()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._results.close()
        await self._runner.cleanup()
        if self._temporary:
            self._temporary.cleanup()

    async def up(self) -> None:
        """Take connections, at the same address as before."""
        self._site = web.TCPSite(self._runner, "127.0.0.1", self._port, backlog=BACKLOG)
        await self._site.start()
        self._port = int(self._runner.addresses[-1][1])
        self.url = f"http://127.0.0.1:{self._port}"

    async def down(self) -> None:
        """Break every connection and refuse new ones, until `up`."""
        await self._site.stop()
        server = self._runner.server
        for connection in server.connections if server else ():
            if connection.transport is not None:
                connection.transport.abort()

    def expire(self) -> None:
        """Forget all sessions, with their models, samplers and results. Saved checkpoints stay."""
        self._sessions.clear()
        self.models.clear()
        self._samplers.clear()
        self._results.forget()

    async def _serve(self, http: web.Request) -> web.StreamResponse:
        route = http.match_info["route"]
        name = route.split("/")[0] if route.startswith(("samplers", "sessions")) else route.replace("/", "_")
        if self.faults[name] and (status := self.faults[name].pop(0)):
            self.refused[name] += 1
            return web.json_response({"detail": "injected"}, status=status)
        answered = asyncio.ensure_future(self._answered(name, http))
        try:
            await asyncio.wait((answered,))
            fault = answered.exception()
        finally:
            answered.cancel()
        if fault is None:
            return answered.result()
        if isinstance(fault, _Refused):
            return web.json_response({"detail": str(fault)}, status=fault.status)
        return web.json_response({"detail": trace_of(fault)}, status=400)

    async def _answered(self, name: str, http: web.Request) -> web.Response:
        if name == "forward_backward":
            return self._forward_backward(await http.read())
        if name in ALWAYS:
            return web.json_response(ALWAYS[name])
        route = http.match_info["route"]
        handler = getattr(self, f"_on_{name}", None)
        if handler is None:
            raise _Refused(404, f"no route {route}")
        body = await http.json() if http.can_read_body else {"id": route.rpartition("/")[2]}
        answer = handler(body)
        answer = await answer if asyncio.iscoroutine(answer) else answer
        return answer if isinstance(answer, web.Response) else web.json_response(answer)

    # Sessions and what the SDK asks before it works

    def _on_create_session(self, body: dict[str, Any]) -> dict[str, Any]:
        self._sessions.add(session := f"session-{self._number()}")
        return {"type": "create_session", "session_id": session}

    def _on_session_heartbeat(self, body: dict[str, Any]) -> dict[str, Any]:
        self._known_session(body["session_id"])
        return {"type": "session_heartbeat"}

    def _on_sessions(self, body: dict[str, Any]) -> web.Response:
        return web.Response(status=204)

    _on_cancel_future = _on_sessions

    # Models

    def _on_create_model(self, body: dict[str, Any]) -> dict[str, Any]:
        self._known_session(body["session_id"])
        model_id = f"{body['session_id']}:train:{body['model_seq_id']}"

        def make() -> dict[str, Any]:
            lora = body["lora_config"]
            self.models[model_id] = Adapted(body["base_model"], lora["rank"], lora.get("seed"))
            return {"type": "create_model", "model_id": model_id}

        return self._accept(f"{model_id}:create", make)

    def _on_load_weights(self, body: dict[str, Any]) -> dict[str, Any]:
        """Load weights into a model that `create_model` made, or into one that is made here."""
        into = self._model(body["model_id"]) if body.get("model_id") else None
        model_id = body["model_id"] if into else f"{body['session_id']}:train:{body['model_seq_id']}"
        if into is None:
            if self._older:
                raise _Refused(422, "no model is named")
            self._known_session(body["session_id"])

        def load() -> dict[str, Any]:
            state = torch.load(self._file(body["path"]), weights_only=True)
            model = into or Adapted(state["checkpoint"], state["rank"], 0)
            model.load(state["weights"])
            if body["optimizer"]:
                model.optimizer.load_state_dict(state["optimizer"])
            self.models[model_id] = model
            return {"type": "load_weights", "path": body["path"], "model_id": model_id}

        return self._in_turn(model_id, body["seq_id"], load) if into else self._accept(f"{model_id}:create", load)

    def _on_weights_info(self, body: dict[str, Any]) -> dict[str, Any]:
        state = torch.load(self._file(body["tinker_path"]), weights_only=True)
        return {"base_model": state["checkpoint"], "is_lora": True, "lora_rank": state["rank"]}

    def _on_get_info(self, body: dict[str, Any]) -> dict[str, Any]:
        model = self._model(body["model_id"])
        about = {"model_name": model.checkpoint, "tokenizer_id": model.checkpoint}
        own = {"model_id": body["model_id"], "is_lora": True, "lora_rank": model.rank}
        return {"type": "get_info", "model_data": about, **own}

    def _forward_backward(self, data: bytes) -> web.Response:
        request = wire.ForwardBackwardRequest.FromString(data)
        model = self._model(request.model_id)
        rows = [self._row(datum) for datum in request.data]
        config = {name: getattr(value, "number", value) for name, value in _config_of(request).items()}

        def work() -> wire.ForwardBackwardOutput:
            self.sent.append(request)
            loss, logprobs = model.forward_backward(rows, request.loss_fn, config, backward=not request.forward_only)
            ends = np.cumsum([0, *(4 * len(one) for one in logprobs)], dtype=np.int64)
            whole = b"".join(one.numpy().astype(np.float32).tobytes() for one in logprobs)
            field = wire.BatchedTensor(data=whole, offsets=ends.tobytes(), dtype=wire.DTYPE_FLOAT32)
            record = wire.ArrayRecord(fields={"logprobs": field}, num_datums=len(rows))
            return wire.ForwardBackwardOutput(
                loss_fn_output_type="ArrayRecord", loss_fn_outputs=[record], metrics={"loss:sum": loss}
            )

        return web.json_response(self._in_turn(request.model_id, request.seq_id, work))

    def _row(self, datum: wire.Datum) -> Row:
        ids = [token for chunk in datum.model_input for token in np.frombuffer(chunk.encoded_text.tokens, np.int32)]
        inputs = {
            name: torch.from_numpy(np.frombuffer(tensor.dense, DTYPES[tensor.dtype]).copy())
            for name, tensor in datum.loss_fn_inputs.items()
        }
        if any(len(one) != len(ids) for one in inputs.values()):
            raise _Refused(400, f"{len(ids)} ids, and inputs of {[len(one) for one in inputs.values()]}")
        return Row(ids=tuple(map(int, ids)), inputs=inputs)

    def _on_optim_step(self, body: dict[str, Any]) -> dict[str, Any]:
        model = self._model(body["model_id"])

        def work() -> dict[str, Any]:
            self.steps.append(body["adam_params"])
            return {"metrics": model.step(body["adam_params"])}

        return self._in_turn(body["model_id"], body["seq_id"], work)

    def _on_save_weights(self, body: dict[str, Any]) -> dict[str, Any]:
        model = self._model(body["model_id"])
        path = f"tinker://{body['model_id']}/weights/{body['path']}"

        def work() -> dict[str, Any]:
            torch.save(model.state(), self._file(path))
            return {"type": "save_weights", "path": path}

        return self._in_turn(body["model_id"], body["seq_id"], work)

    def _file(self, path: str) -> Path:
        return self._folder / path.removeprefix("tinker://").replace("/", "_").replace(":", "_")

    # Sampling

    def _on_save_weights_for_sampler(self, body: dict[str, Any]) -> dict[str, Any]:
        model = self._model(body["model_id"])

        def work() -> dict[str, Any]:
            sampler = f"{body['model_id']}:sampler:{self._number()}"
            self._samplers[sampler] = (model.checkpoint, model.weights())
            return {"type": "save_weights_for_sampler", "sampling_session_id": sampler}

        return self._in_turn(body["model_id"], body["seq_id"], work)

    def _on_samplers(self, body: dict[str, Any]) -> dict[str, Any]:
        return {"sampler_id": body["id"], "base_model": self._sampler(body["id"])[0]}

    def _on_asample(self, body: dict[str, Any]) -> dict[str, Any]:
        sampler = body["sampling_session_id"]
        self._sampler(sampler)
        request_id = f"{sampler}:sample:{body['seq_id']}"
        if result := self._results.opened(request_id):
            self.draws.append(body)
            params = body["sampling_params"]
            ids = tuple(token for chunk in body["prompt"]["chunks"] for token in chunk["tokens"])
            same = {
                name: params[name] for name in ("temperature", "top_k", "top_p", "seed") if params.get(name) is not None
            }
            one = Draw(ids=ids, most=params["max_tokens"], stops=frozenset(params.get("stop") or ()), **same)
            self._waiting.append((request_id, one, result))
            if len(self._waiting) == 1:
                self._results.begin(self._sample())
        return {"request_id": request_id, **({} if self._older else {"sample_sequence_ids": [request_id]})}

    async def _sample(self) -> None:
        async with self._sampling:  # meanwhile more requests gather
            await asyncio.sleep(WINDOW_SECONDS)
            batch, self._waiting = self._waiting, []
            by_sampler: dict[str, list[tuple[str, Draw, Result]]] = defaultdict(list)
            for one in batch:
                by_sampler[one[0].rpartition(":sample:")[0]].append(one)
            for sampler, queue in by_sampler.items():
                if held := self._samplers.get(sampler):  # else it has expired since
                    drawn = partial(self._drawn, sampler, *held, [one[:2] for one in queue])
                    await self._results.finish([result for _, _, result in queue], drawn)

    def _drawn(
        self, sampler: str, checkpoint: str, weights: Weights | None, queue: list[tuple[str, Draw]]
    ) -> list[wire.SampleResponse]:
        held, owner = self._loaded.get(checkpoint) or (None, "")
        rank = next(iter(weights.values())).shape[0] if weights else 1
        if held is None or held.rank != rank:
            held = Adapted(checkpoint, rank, 0)
        if weights and owner != sampler:
            held.load(weights)
        self._loaded[checkpoint] = (held, sampler)
        answers: list[wire.SampleResponse] = []
        for drawn in draw(held.model, [one for _, one in queue]):
            sequence = wire.SampledSequence(
                stop_reason=wire.STOP_REASON_STOP if drawn.stopped else wire.STOP_REASON_LENGTH,
                tokens=np.array(drawn.ids, np.int32).tobytes(),
                logprobs=np.array(drawn.logprobs, np.float32).tobytes(),
            )
            answers.append(wire.SampleResponse(sequences=[sequence]))
            if self.tamper:
                self.tamper(answers[-1])
        return answers

    # Results

    async def _on_retrieve_future(self, body: dict[str, Any]) -> web.Response | dict[str, Any]:
        answer = await self._results.wait(body["request_id"])
        if answer is None:
            raise _Refused(410, f"no result {body['request_id']}")
        return answer

    def _accept(self, request_id: str, work: Callable[[], Any]) -> dict[str, Any]:
        self._results.do(request_id, work)
        return {"request_id": request_id}

    def _in_turn(self, model_id: str, seq_id: int, work: Callable[[], Any]) -> dict[str, Any]:
        return {"request_id": self._results.do_in_turn(model_id, seq_id, work), "model_id": model_id}

    def _number(self) -> int:
        self._count += 1
        return self._count

    def _known_session(self, session: str) -> None:
        if session not in self._sessions:
            raise _Refused(410, f"no session {session}")

    def _model(self, model_id: str) -> Adapted:
        if model_id not in self.models:
            raise _Refused(404, f"no model {model_id}")
        return self.models[model_id]

    def _sampler(self, sampler: str) -> tuple[str, Weights | None]:
        if sampler not in self._samplers:
            raise _Refused(404, f"no sampler {sampler}")
        return self._samplers[sampler]


def _config_of(request: wire.ForwardBackwardRequest) -> Any:
    """Return the settings of the loss, by the name that they have since SDK 0.26 or by the older one."""
    return getattr(request, "loss_fn_config_v2", None) or request.loss_fn_config
