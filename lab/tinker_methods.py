"""Call every public method of the package ``tinker`` on a server, and say which ones it answers; writes the page of them.

``python -m lab.tinker_methods URL KEY MODEL`` prints a JSON object: for each ``Class.method`` an empty text, or why it is refused.
Any version of the package may be on the import path. A method that this program does not know how to call is an error, so a new
one cannot be overlooked.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import json
import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

PAGE = Path(__file__).resolve().parents[1] / "instructions" / "tinker_methods.md"
IDS = [5, 6, 7, 8, 9]
HEAD = """# Methods of the package tinker

Which public methods of the package `tinker` {version} the [server for programs](tinker_server.md)
answers. `tests/integration/test_tinker_methods.py` calls each and writes this page; do not edit it.
"""


def settled(value: Any) -> Any:
    """Return what a future or an awaitable leads to."""
    for _ in range(3):
        result = getattr(value, "result", None)
        if callable(result):
            value = result()
        elif inspect.isawaitable(value):
            value = asyncio.run(_waited(value))
    return value


async def _waited(value: Any) -> Any:
    return await value


class World:
    """One object of each class, and what their methods are called with."""

    def __init__(self, url: str, key: str, model: str) -> None:
        import tinker
        from tinker import types

        self.tinker, self.types, self.model = tinker, types, model
        self.service = tinker.ServiceClient(base_url=url, api_key=key)
        self.training = settled(self.service.create_lora_training_client(base_model=model, rank=4))
        inputs = {"target_tokens": IDS[1:], "weights": [1.0] * (len(IDS) - 1)}
        self.data = [types.Datum(model_input=types.ModelInput.from_ints(IDS[:-1]), loss_fn_inputs=inputs)]
        self.prompt = types.ModelInput.from_ints(IDS)
        self.params = types.SamplingParams(max_tokens=2)
        self.adam = types.AdamParams(learning_rate=1e-4)
        self.state = settled(self.training.save_state("state")).path
        self.kept = settled(self.training.save_weights_for_sampler("kept")).path
        self.sampler = settled(self.training.save_weights_and_get_sampling_client())
        self.rest: Any = self.service.create_rest_client()
        self.run = self.training.model_id
        self.numbers = iter(range(1000))

    def named(self) -> str:
        """Return a new name of weights, saved."""
        return settled(self.training.save_state(f"n{next(self.numbers)}")).path

    def id_of(self, path: str) -> str:
        """Return the id of weights in their run."""
        return "/".join(path.split("/")[-2:])


def loss(data: Any, log_probs: Any) -> Any:
    """Return the sum of negative log probabilities, as a custom loss."""
    total: Any = -sum(each.sum() for each in log_probs)
    return total, {"mine": float(total.detach())}


Call = Callable[[World], Any]
SERVICE: Mapping[str, Call] = {
    "copy_weights": lambda w: w.service.copy_weights(w.state),
    "create_custom_loss": lambda w: w.service.create_custom_loss(
        lambda logprobs, weights: (-(logprobs * weights).sum(), {}), {"logprobs": 1, "weights": 1}
    ),
    "create_lora_training_client": lambda w: w.service.create_lora_training_client(base_model=w.model, rank=2),
    "create_rest_client": lambda w: w.service.create_rest_client(),
    "create_sampling_client": lambda w: w.service.create_sampling_client(model_path=w.kept),
    "create_training_client_from_state": lambda w: w.service.create_training_client_from_state(w.state),
    "create_training_client_from_state_with_optimizer": lambda w: (
        w.service.create_training_client_from_state_with_optimizer(w.state)
    ),
    "get_console_url": lambda w: w.service.get_console_url(),
    "get_server_capabilities": lambda w: w.service.get_server_capabilities(),
    "get_telemetry": lambda w: w.service.get_telemetry(),
    "close": lambda w: _closed(w.service),
}
TRAINING: Mapping[str, Call] = {
    "create_sampling_client": lambda w: w.training.create_sampling_client(w.kept),
    "forward": lambda w: w.training.forward(w.data, "cross_entropy"),
    "forward_backward": lambda w: w.training.forward_backward(w.data, "cross_entropy"),
    "forward_backward_custom": lambda w: w.training.forward_backward_custom(w.data, loss),
    "get_console_url": lambda w: w.training.get_console_url(),
    "get_info": lambda w: w.training.get_info(),
    "get_telemetry": lambda w: w.training.get_telemetry(),
    "get_tokenizer": lambda w: w.training.get_tokenizer(),
    "load_state": lambda w: w.training.load_state(w.state),
    "load_state_with_optimizer": lambda w: w.training.load_state_with_optimizer(w.state),
    "optim_step": lambda w: w.training.optim_step(w.adam),
    "save_state": lambda w: w.training.save_state(f"s{next(w.numbers)}"),
    "save_weights_and_get_sampling_client": lambda w: w.training.save_weights_and_get_sampling_client(),
    "save_weights_external": lambda w: w.training.save_weights_external(f"e{next(w.numbers)}"),
    "save_weights_for_sampler": lambda w: w.training.save_weights_for_sampler(f"p{next(w.numbers)}"),
}
SAMPLING: Mapping[str, Call] = {
    "compute_logprobs": lambda w: w.sampler.compute_logprobs(w.prompt),
    "create": lambda w: type(w.sampler).create(w.sampler.holder, model_path=w.kept),
    "from_sampler_handle": lambda w: type(w.sampler).from_sampler_handle(w.sampler.get_sampler_handle()),
    "get_base_model": lambda w: w.sampler.get_base_model(),
    "get_sampler_handle": lambda w: w.sampler.get_sampler_handle(),
    "get_telemetry": lambda w: w.sampler.get_telemetry(),
    "get_tokenizer": lambda w: w.sampler.get_tokenizer(),
    "on_queue_state_change": lambda w: None,
    "sample": lambda w: w.sampler.sample(prompt=w.prompt, num_samples=1, sampling_params=w.params),
}
REST: Mapping[str, Call] = {
    "assign_session_project": lambda w: w.rest.assign_session_project(w.run.split(":")[0], "project"),
    "copy_weights": lambda w: w.rest.copy_weights(w.state, "project"),
    "delete_checkpoint": lambda w: w.rest.delete_checkpoint(w.run, w.id_of(w.named())),
    "delete_checkpoint_from_tinker_path": lambda w: w.rest.delete_checkpoint_from_tinker_path(w.named()),
    "export_session_trace": lambda w: w.rest.export_session_trace(w.run.split(":")[0]),
    "get_audit_log": lambda w: w.rest.get_audit_log(),
    "get_billing_usage": lambda w: w.rest.get_billing_usage("2026-01-01", "2026-02-01"),
    "get_checkpoint_archive_url": lambda w: w.rest.get_checkpoint_archive_url(w.run, w.id_of(w.state)),
    "get_checkpoint_archive_url_from_tinker_path": lambda w: w.rest.get_checkpoint_archive_url_from_tinker_path(
        w.state
    ),
    "get_current_checkpoint_storage_usage": lambda w: w.rest.get_current_checkpoint_storage_usage(),
    "get_external_weights_urls": lambda w: w.rest.get_external_weights_urls(w.state),
    "get_sampler": lambda w: w.rest.get_sampler(w.sampler._sampling_session_id),
    "get_server_capabilities": lambda w: w.rest.get_server_capabilities(),
    "get_session": lambda w: w.rest.get_session(w.run.split(":")[0]),
    "get_telemetry": lambda w: w.rest.get_telemetry(),
    "get_training_run": lambda w: w.rest.get_training_run(w.run),
    "get_training_run_by_tinker_path": lambda w: w.rest.get_training_run_by_tinker_path(w.state),
    "get_weights_info_by_tinker_path": lambda w: w.rest.get_weights_info_by_tinker_path(w.state),
    "list_checkpoints": lambda w: w.rest.list_checkpoints(w.run),
    "list_sessions": lambda w: w.rest.list_sessions(),
    "list_training_runs": lambda w: w.rest.list_training_runs(),
    "list_user_checkpoints": lambda w: w.rest.list_user_checkpoints(),
    "publish_checkpoint_from_tinker_path": lambda w: w.rest.publish_checkpoint_from_tinker_path(w.state),
    "search_sessions": lambda w: w.rest.search_sessions(w.types.SessionSearchRequest()),
    "set_checkpoint_ttl_from_tinker_path": lambda w: w.rest.set_checkpoint_ttl_from_tinker_path(w.named(), 7200),
    "unpublish_checkpoint_from_tinker_path": lambda w: w.rest.unpublish_checkpoint_from_tinker_path(w.state),
    "whoami": lambda w: w.rest.whoami(),
}
CLASSES = {"ServiceClient": SERVICE, "TrainingClient": TRAINING, "SamplingClient": SAMPLING, "RestClient": REST}
ASYNC = "_async"


def _closed(service: Any) -> Any:
    wants = len(inspect.signature(service.close).parameters)
    return service.close("success") if wants else service.close()


def objects_of(world: World) -> dict[str, Any]:
    """Return one object of each class."""
    return {
        **{"TrainingClient": world.training, "SamplingClient": world.sampler, "RestClient": world.rest},
        "ServiceClient": world.service,
    }


def found_on(world: World) -> dict[str, str]:
    """Return why each public method is refused, empty for one that answers.

    A method that ends in ``_async`` is called as it is, with the arguments of the other.

    Raises:
        LookupError: a class has a method that `CLASSES` does not know.
    """
    found: dict[str, str] = {}
    for name, value in objects_of(world).items():
        names = [each for each, _ in inspect.getmembers(type(value), callable) if not each.startswith("_")]
        for method in sorted(names, key=lambda each: (each == "close", each)):
            call = CLASSES[name].get(method.removesuffix(ASYNC))
            if call is None:
                raise LookupError(f"{name}.{method} is new: say in {__file__} how to call it")
            if method.endswith(ASYNC):
                call = _as_async(name, method, call)
            found[f"{name}.{method}"] = _problem(call, world)
    return found


def _as_async(name: str, method: str, call: Call) -> Call:
    """Return the call of a method's other form."""

    def other(world: World) -> Any:
        value = objects_of(world)[name]
        plain = method.removesuffix(ASYNC)
        with contextlib.suppress(AttributeError):
            delattr(value, plain)
        setattr(value, plain, getattr(value, method))
        try:
            return call(world)
        finally:
            delattr(value, plain)

    return other


def _problem(call: Call, world: World) -> str:
    try:
        settled(call(world))
    except Exception as error:  # noqa: BLE001 - it is what the page tells
        body = getattr(error, "body", None)
        said = body.get("detail") if isinstance(body, dict) else None
        text = str(said or error).splitlines()[0]
        return text.partition(" for self.request_id=")[0].replace(w_id(world), "RUN")
    return ""


def w_id(world: World) -> str:
    """Return the id of the session, which each run makes anew."""
    return str(world.run).partition(":")[0]


def page(version: str, found: Mapping[str, str]) -> str:
    """Return the page of what was found."""
    lines = [HEAD.format(version=version)]
    for name in sorted(CLASSES):
        mine = {key.partition(".")[2]: why for key, why in found.items() if key.startswith(f"{name}.")}
        lines += [f"## {name}", "", "| method | answered |", "|---|---|"]
        lines += [f"| `{method}` | {'yes' if not why else f'no: {why}'} |" for method, why in sorted(mine.items())]
        lines += [""]
    return "\n".join(lines)


def main(words: Sequence[str]) -> int:
    """Print what was found on the server that the words name."""
    warnings.filterwarnings("ignore")
    world = World(*words)
    print(json.dumps({"version": world.tinker.__version__, "found": found_on(world)}))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
