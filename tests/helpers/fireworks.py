"""A stand-in of Fireworks over HTTP, from the shapes of its interface (package 1.2.30): trainer jobs, deployments, hot load, inference.

It is strict: another key, an unknown field, a body that is not JSON, or a call in the wrong order is refused. The weights of an adapter
are a number, which a step raises by the sum of the advantages; a snapshot scores every token with minus its weights.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import threading
from collections import defaultdict
from collections.abc import Callable
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from groundwork.network import find_available_port

KEY = "fw_of_a_test_and_of_nobody"
ACCOUNT, MODEL = "me", "accounts/fireworks/models/tiny"
SHAPE, DEPLOYMENT_SHAPE = (
    "accounts/fireworks/trainingShapes/tiny",
    "accounts/fireworks/deploymentShapes/tiny/versions/1",
)
TRAINER_FIELDS = {"serviceMode", "keepAlive", "dataset", "displayName", "trainingConfig"}
DEPLOYMENT_FIELDS = {
    *("baseModel", "description", "deploymentShape", "minReplicaCount", "maxReplicaCount", "enableHotLoad"),
    *("hotLoadBucketType", "hotLoadTrainerJob", "hotLoadTransitionType", "forTraining"),
}
COMMANDS = {
    "create_model": {"session_id", "model_seq_id", "base_model", "lora_config"},
    "forward_backward": {"forward_backward_input"},
    "optim_step": {"adam_params"},
    "save_weights": {"path"},
    "load_weights": {"path", "optimizer"},
    "save_weights_for_sampler": {"path", "checkpoint_type"},
    "unload_model": set[str](),
}
COMPLETION = {
    *("model", "prompt", "n", "max_tokens", "echo", "temperature", "top_p", "top_k", "logprobs", "raw_output"),
    *("top_logprobs", "seed", "stop"),
}
REPLY = [20, 21, 22]


class Wrong(Exception):
    """A request that Fireworks would refuse."""

    def __init__(self, status: int, words: str) -> None:
        super().__init__(words)
        self.status, self.words = status, words


class Fireworks:
    """The service; enter it to have it answer at ``address``.

    Attributes:
        calls: method and path of each request, in order; those that only look are left out.
        trainers, deployments: what exists, by resource name.
        refuses: statuses with which the next requests of a path are answered, by a part of the path.
        before: called with each request that creates something.
    """

    def __init__(self) -> None:
        self.calls, self.looks = list[str](), list[str]()
        self.trainers, self.deployments = dict[str, Any](), dict[str, Any]()
        self.models, self.states, self.snapshots = dict[str, Any](), dict[str, float](), dict[str, float]()
        self.results, self.tickets = dict[str, Any](), dict[Any, str]()
        self.sessions = set[str]()
        self.refuses: defaultdict[str, list[int | dict[str, str]]] = defaultdict(list)
        self.before: Callable[[str], None] = lambda path: None
        self.boot = ["CREATING", "PENDING", "RUNNING"]
        self.mode, self.loads_in = "LORA_TRAINER", 1
        self.change_reply: Callable[[dict[str, Any]], None] = lambda choice: None
        self.free = threading.Event()
        self.free.set()
        self.began = threading.Semaphore(0)
        self._numbers = itertools.count(1)
        self.port = find_available_port(host="127.0.0.1")
        self.address = f"http://127.0.0.1:{self.port}"
        routes = [Route("/{path:path}", self._answer, methods=["GET", "POST", "PATCH", "DELETE"])]
        config = uvicorn.Config(
            Starlette(routes=routes), "127.0.0.1", self.port, log_level="warning", lifespan="off", access_log=False
        )
        self._web = uvicorn.Server(config)
        self._thread = threading.Thread(target=self._web.run, daemon=True)

    def __enter__(self) -> Fireworks:
        self._thread.start()
        while not self._web.started:
            threading.Event().wait(0.005)
        return self

    def __exit__(self, *_: object) -> None:
        self.free.set()
        self._web.should_exit = self._web.force_exit = True  # it looks ten times a second; nobody has to wait for that

    async def _answer(self, request: Request) -> Response:
        body = await request.body()
        return await asyncio.to_thread(self._handled, request, body)

    def _handled(self, request: Request, body: bytes) -> Response:
        path = request.url.path
        (self.looks if request.method == "GET" or "retrieve" in path or "beat" in path else self.calls).append(
            f"{request.method} {path}"
        )
        try:
            for part, waiting in self.refuses.items():
                if part in f"{request.method} {path}" and waiting:
                    refusal = waiting.pop(0)
                    status, headers = (refusal, {}) if isinstance(refusal, int) else (429, refusal)
                    return JSONResponse({"error": {"message": f"no: {status}"}}, status, headers)
            if request.headers.get("authorization") != f"Bearer {KEY}":
                raise Wrong(401, "this key may not train")
            asked = json.loads(body) if body else {}
            return self._routed(request, path, asked)
        except Wrong as error:
            return JSONResponse({"error": {"message": error.words}}, error.status)

    def _routed(self, request: Request, path: str, asked: dict[str, Any]) -> Response:
        method, query = request.method, dict(request.query_params)
        own = f"/v1/accounts/{ACCOUNT}/"
        if path == "/v1/accounts":
            return JSONResponse({"accounts": [{"name": f"accounts/{ACCOUNT}"}]})
        if path == f"/v1/{SHAPE}/versions":
            facts = {"trainerMode": self.mode, "maxSupportedContextLength": 512, "acceleratorCount": 4, "nodeCount": 1}
            facts["deploymentShapeVersion"] = DEPLOYMENT_SHAPE
            return JSONResponse({"trainingShapeVersions": [{"name": f"{SHAPE}/versions/1", "snapshot": facts}]})
        if path == f"/v1/{DEPLOYMENT_SHAPE}":
            return JSONResponse({"snapshot": {"acceleratorCount": 2}})
        if path == f"{own}rlorTrainerJobs":
            return self._create_trainer(query, asked)
        if path == f"{own}deployments":
            return self._create_deployment(query, asked)
        if path.startswith(own):
            return self._resource(method, path.removeprefix("/v1/"), asked, query)
        if path.startswith("/training/v1/rlorTrainerJobs/"):
            _, _, _, _, account, job, *rest = path.split("/")
            return self._gateway(f"accounts/{account}/rlorTrainerJobs/{job}", "/".join(rest), asked)
        if path == "/hot_load/v1/models/hot_load":
            return self._hot_load(method, request.headers["fireworks-deployment"], asked)
        if path == "/inference/v1/completions":
            return self._completion(asked)
        raise Wrong(404, f"no route {path}")

    # Control plane

    def _create_trainer(self, query: dict[str, str], asked: dict[str, Any]) -> Response:
        self.before("trainer")
        name = f"accounts/{ACCOUNT}/rlorTrainerJobs/{query['rlorTrainerJobId']}"
        if (
            set(query) != {"trainingShape", "rlorTrainerJobId"}
            or set(asked) - TRAINER_FIELDS
            or not asked["serviceMode"]
        ):
            raise Wrong(400, "unknown field")
        if name in self.trainers:
            raise Wrong(409, "already exists")
        self.trainers[name] = {"name": name, "state": "", "left": list(self.boot), **asked}
        return JSONResponse(self._shown(name))

    def _create_deployment(self, query: dict[str, str], asked: dict[str, Any]) -> Response:
        self.before("deployment")
        name, job = f"accounts/{ACCOUNT}/deployments/{query['deploymentId']}", asked.get("hotLoadTrainerJob")
        if set(asked) - DEPLOYMENT_FIELDS or asked["deploymentShape"] != DEPLOYMENT_SHAPE:
            raise Wrong(400, "unknown field")
        if self.trainers.get(job, {}).get("state") != "RUNNING":
            raise Wrong(400, "the trainer job comes first")
        self.deployments[name] = {"name": name, "left": ["CREATING", "READY"], "target": None, "wait": 0, **asked}
        self.deployments[name]["replicas"] = [None] * asked["minReplicaCount"]
        return JSONResponse(self._shown(name))

    def _shown(self, name: str) -> dict[str, Any]:
        found = self.trainers.get(name) or self.deployments.get(name)
        if found is None:
            raise Wrong(404, f"no {name}")
        if found["left"]:
            found["state"] = found["left"].pop(0)
        shown = {each: value for each, value in found.items() if each not in ("left", "target", "wait", "replicas")}
        if name in self.trainers:
            shown["state"] = f"JOB_STATE_{found['state']}"
        return shown

    def _resource(self, method: str, name: str, asked: dict[str, Any], query: dict[str, str]) -> Response:
        if name.endswith(":resume"):
            self.trainers[name.removesuffix(":resume")]["left"] = ["FAILED", "CREATING", "RUNNING"]
            return JSONResponse({})
        if method == "DELETE":
            self._shown(name)
            if name in self.deployments:
                del self.deployments[name]
            else:
                self.trainers[name] |= {"state": "DELETED", "left": []}
            return JSONResponse({})
        if method == "PATCH":
            assert query == {"updateMask": "hot_load_trainer_job"}
            self.deployments[name] |= asked
        return JSONResponse(self._shown(name))

    # Trainer job

    def _gateway(self, job: str, route: str, asked: dict[str, Any]) -> Response:
        if self.trainers.get(job, {}).get("state") != "RUNNING":
            raise Wrong(404, "no such trainer")
        name = route.removeprefix("api/v1/")
        if name == "healthz":
            return JSONResponse({"status": "ok"})
        if name == "create_session":
            self.sessions.add(session := f"session-{next(self._numbers)}")
            return JSONResponse({"session_id": session})
        if name == "session_heartbeat":
            return JSONResponse({})
        if name == "retrieve_future":
            return self._result(asked["request_id"])
        if name not in COMMANDS or set(asked) - COMMANDS[name] - {"model_id", "seq_id", "type"}:
            raise Wrong(400, f"unknown field for {name}: {sorted(asked)}")
        key = (asked.get("model_id") or asked["session_id"], asked.get("seq_id", name))
        if key not in self.tickets:
            self.tickets[key] = ticket = f"request-{next(self._numbers)}"
            try:
                self.results[ticket] = [{"type": "try_again"}, self._done(job, name, asked)]
            except Wrong as error:
                self.results[ticket] = [{"error": error.words, "category": "User"}]
        return JSONResponse({"request_id": self.tickets[key]})

    def _result(self, ticket: str) -> Response:
        found = self.results[ticket]
        return JSONResponse(found.pop(0) if len(found) > 1 else found[0])

    def _done(self, job: str, name: str, asked: dict[str, Any]) -> dict[str, Any]:
        if name == "create_model":
            if asked["session_id"] not in self.sessions or asked["lora_config"]["rank"] < 1:
                raise Wrong(400, "no adapter")
            self.models[model := f"model-{next(self._numbers)}"] = {"weights": 0.0, "moments": 0, "gradient": 0.0}
            return {"model_id": model}
        model = self.models[asked["model_id"]]
        own = job.rpartition("/")[2]
        if name == "unload_model":
            del self.models[asked["model_id"]]
        elif name == "forward_backward":
            return self._pass(model, asked["forward_backward_input"])
        elif name == "optim_step":
            assert set(asked["adam_params"]) == {
                *("learning_rate", "beta1", "beta2", "eps", "weight_decay", "grad_clip_norm")
            }
            model["weights"], model["gradient"] = model["weights"] + model["gradient"], 0.0
            model["moments"] += 1
            return {"metrics": {"grad_norm:mean": 0.5}}
        elif name == "save_weights":
            self.states[f"{own}/{asked['path']}"] = (model["weights"], model["moments"])  # type: ignore[assignment]
            return {"path": f"{ACCOUNT}/run/{asked['path']}"}
        elif name == "load_weights":
            path = asked["path"]
            where = path.removeprefix("cross_job://") if "://" in path else f"{own}/{path.rpartition('/')[2]}"
            if where not in self.states:
                raise Wrong(400, f"no state {path}")
            model["weights"], model["moments"] = self.states[where]  # type: ignore[misc]
        elif name == "save_weights_for_sampler":
            assert asked["checkpoint_type"] == "base"
            self.snapshots[identity := f"{asked['path']}-of-{own}"] = model["weights"]
            return {"path": identity}
        return {}

    @staticmethod
    def _pass(model: dict[str, Any], asked: dict[str, Any]) -> dict[str, Any]:
        outputs = []
        for datum in asked["data"]:
            [chunk] = datum["model_input"]["chunks"]
            inputs = datum["loss_fn_inputs"]
            for each in inputs.values():
                assert each["shape"] == [len(each["data"])] == [len(chunk["tokens"])]
            assert inputs["target_tokens"]["dtype"] == "int64"
            model["gradient"] += sum(inputs["advantages"]["data"])
            outputs.append({"logprobs": inputs["logprobs"]})
        return {"loss_fn_outputs": outputs, "metrics": {"loss:sum": -model["gradient"]}}

    # Deployment

    def _hot_load(self, method: str, name: str, asked: dict[str, Any]) -> Response:
        found = self.deployments.get(name)
        if found is None:
            raise Wrong(404, "no such deployment")
        if method == "POST":
            assert set(asked) == {"identity", "reset_prompt_cache"}
            job = found["hotLoadTrainerJob"].rpartition("/")[2]
            if not asked["identity"].endswith(f"-of-{job}"):
                raise Wrong(400, "not in this trainer's bucket")
            found["target"], found["wait"] = asked["identity"], self.loads_in
            if set(found["replicas"]) == {asked["identity"]}:
                found["target"] = None  # they have it already
            return JSONResponse({})
        stage = "done"
        if found["target"] is not None:
            stage, found["wait"] = "loading", found["wait"] - 1
            if found["wait"] < 0:
                known = found["target"] in self.snapshots
                stage = "done" if known else "error"
                if known:
                    found["replicas"] = [found["target"]] * len(found["replicas"])
                    found["target"] = None
        shown = [
            {
                "readiness": True,
                "current_snapshot_identity": each,
                "loading_state": {"stage": stage, "target_snapshot_identity": found["target"]},
            }
            for each in found["replicas"]
        ]
        return JSONResponse({"replicas": shown})

    def _completion(self, asked: dict[str, Any]) -> Response:
        if set(asked) - COMPLETION or not all(isinstance(each, int) for each in asked["prompt"]):
            raise Wrong(400, "unknown field")
        weights = 0.0
        if (found := self.deployments.get(asked["model"])) is not None:
            identity = found["replicas"][0]
            if identity is None or found["target"] is not None:
                raise Wrong(425, "loading")
            weights = self.snapshots[identity]
        elif asked["model"] != MODEL:
            raise Wrong(404, "no such model")
        self.began.release()
        self.free.wait(10)
        reply = REPLY[: asked["max_tokens"]]
        tokens = [*(asked["prompt"] if asked["echo"] else []), *reply]
        entries = [{"logprob": -weights, "sampling_logprob": -weights} for _ in tokens]
        if top := asked.get("top_logprobs"):
            for entry in entries:
                entry["top_logprobs"] = [{"token_id": 9 + n, "logprob": -0.1 * n} for n in range(top)]  # type: ignore[assignment]
        choice = {
            "text": "",
            "finish_reason": "stop",
            "logprobs": {"content": entries},
            "raw_output": {"completion_token_ids": tokens},
        }
        self.change_reply(choice)
        return JSONResponse({"choices": [choice], "usage": {"prompt_tokens_details": {"cached_tokens": 1}}})
