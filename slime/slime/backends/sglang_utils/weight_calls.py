"""The calls of a weight update on an engine's server, through SGLang's routes.

Guarantees: a call returns once the server has done the work. A refused call raises
:class:`~slime.exceptions.EngineError` with the server's message. Holds no state.
"""

from __future__ import annotations

import base64
from typing import Any, Literal

from slime.backends.sglang_utils.server_hooks import IN_USE
from slime.exceptions import EngineError

PauseMode = Literal["retract", "in_place", "abort"]


class WeightCalls:
    """Mixin for an engine's class, built on its ``_post`` and ``_get``."""

    _cpu: bool
    _spec: Any
    _away: set[str]

    def _post(self, route: str, **body: Any) -> Any:
        raise NotImplementedError

    def _get(self, route: str) -> dict[str, Any]:
        raise NotImplementedError

    def num_weight_ranks(self) -> int:
        """Return this engine's number of ranks in the weight update group."""
        return self._spec.nodes if self._cpu else self._spec.num_gpus

    def init_weights_update_group(
        self, master_addr: str, master_port: int, rank_offset: int, world_size: int, group_name: str, backend: str
    ) -> None:
        """Join the trainer's group and wait for all ranks; first leave a dead trainer's group of the same name."""
        self.destroy_weights_update_group(group_name)
        self._post(
            "/init_weights_update_group",
            master_address=master_addr,
            master_port=master_port,
            rank_offset=rank_offset,
            world_size=world_size,
            group_name=group_name,
            backend=backend,
        )

    def destroy_weights_update_group(self, group_name: str) -> None:
        """Leave the trainer's group; a no-op for a restarted engine, which is in no group."""
        try:
            self._post("/destroy_weights_update_group", group_name=group_name)
        except EngineError as error:
            if "does not exist" not in str(error):
                raise

    def pause_generation(self, mode: PauseMode = "retract") -> None:
        """Hold all requests; new ones wait. ``retract`` recomputes the running ones with the new weights."""
        self._post("/pause_generation", mode=mode)

    def continue_generation(self) -> None:
        """Continue held requests; an engine with released memory keeps holding until it wakes."""
        if not self._away:
            self._post("/continue_generation", torch_empty_cache=False)

    def begin_weight_update(self) -> None:
        """Open an update session; weights can be loaded until ``end_weight_update``.

        First closes a session that a dead trainer left open.
        """
        try:
            self._post("/begin_weight_update")
        except EngineError as error:
            if "already open" not in str(error):
                raise
            self.close_left_session()
            self._post("/begin_weight_update")

    def close_left_session(self) -> None:
        """Close a session that a dead trainer left open, if any."""
        try:
            self._post("/end_weight_update")
        except EngineError as error:
            if "no weight-update session is open" not in str(error):
                raise

    def update_weights_from_distributed(
        self,
        names: list[str],
        dtypes: list[str],
        shapes: list[list[int]],
        group_name: str,
        flush_cache: bool = False,
        weight_version: str | None = None,
        load_format: str | None = None,
    ) -> None:
        """Receive one bucket from rank 0 of the group, which must broadcast while this call is in flight.

        ``flush_cache`` on the last bucket empties the prefix cache at no extra cost; refused while requests run.
        """
        self._post(
            "/update_weights_from_distributed",
            names=names,
            dtypes=dtypes,
            shapes=shapes,
            group_name=group_name,
            flush_cache=flush_cache,
            weight_version=weight_version,
            load_format=load_format,
        )

    def update_weights_from_tensor(
        self,
        serialized: bytes,
        load_format: str | None = None,
        flush_cache: bool = False,
        weight_version: str | None = None,
    ) -> None:
        """Load named tensors, a pickled list of pairs, on every rank of the engine."""
        payload = base64.b64encode(serialized).decode()
        self._post(
            "/update_weights_from_tensor",
            serialized_named_tensors=[payload] * self.num_weight_ranks(),
            load_format=load_format,
            flush_cache=flush_cache,
            weight_version=weight_version,
        )

    def update_weights_from_disk(self, path: str, flush_cache: bool, weight_version: str) -> None:
        """Load the Hugging Face folder ``path``, which the server's machine must see."""
        self._post("/update_weights_from_disk", model_path=path, flush_cache=flush_cache, weight_version=weight_version)

    def load_lora_adapter_from_tensors(
        self, name: str, config: dict[str, Any], serialized: bytes, checksums: dict[str, str] | None
    ) -> None:
        """Load an additional adapter, a pickled dict of tensors under PEFT's names.

        ``checksums``: SHA-256 of each tensor; a server with a mismatch exits.
        """
        payload = base64.b64encode(serialized).decode()
        self._post(
            "/load_lora_adapter_from_tensors",
            lora_name=name,
            config_dict=config,
            serialized_named_tensors=[payload] * self.num_weight_ranks(),
            expected_checksums=checksums,
        )

    def unload_lora_adapter(self, name: str) -> bool:
        """Unload an adapter; return False if requests still use it, True also if it is already gone."""
        try:
            self._post("/unload_lora_adapter", lora_name=name)
        except EngineError as error:
            if IN_USE in str(error):
                return False
            if "does not exist" not in str(error):
                raise
        return True

    def lora_adapters(self) -> list[str]:
        """Return the names that the server serves: its model and its loaded adapters."""
        return [str(model["id"]) for model in self._get("/v1/models")["data"]]

    def set_weight_version(self, version: str) -> None:
        """Set the version that the server reports, without changing weights."""
        self._post("/update_weight_version", new_version=version, abort_all_requests=False)

    def end_weight_update(self, weight_version: str | None = None) -> None:
        """Close the session; running and later requests report ``weight_version`` from now on."""
        if weight_version is not None:
            self.set_weight_version(weight_version)
        self._post("/end_weight_update")

    def flush_cache(self) -> None:
        """Empty the prefix cache in 0.4 s; refused while requests run, allowed while ``retract`` pauses them."""
        self._post("/flush_cache")

    def hold_after_failed_update(self) -> None:
        """Close a failed update's session and keep holding requests, because the weights may be mixed.

        The next update continues the requests.
        """
        self.pause_generation("retract")
        self.close_left_session()

    def get_weight_version(self) -> str:
        """Return the version that the server reports for new tokens."""
        return str(self._get("/model_info")["weight_version"])
