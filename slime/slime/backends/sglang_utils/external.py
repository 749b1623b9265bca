"""An external policy engine: ``--rollout-external-engine-addrs host:port ...``.

Guarantees: its facts come from its ``/server_info``. It gets the trainer's weights like an engine of our own, but is
never started, restarted or ended from here. If the run ends, however it ends, while it holds the engine, the engine
continues its requests (`external_release`).
"""

from __future__ import annotations

import logging
import subprocess
from pathlib import Path
from typing import Any

import httpx

from groundwork.cleanup import start_script, tell
from groundwork.exceptions import ConfigError
from groundwork.machine import this_host
from groundwork.private_files import private_folder
from slime.args import Arguments
from slime.arguments.placement import EngineSpec
from slime.arguments.trainer import STAGES_REFUSED, misses_stages, uses_loader
from slime.backends.sglang_utils import external_release as external_release
from slime.backends.sglang_utils.engine import PauseMode, SGLangEngine
from slime.exceptions import EngineError
from slime.weight_sync import LOADER

LOCAL_HOSTS = {"127.0.0.1", "localhost", "::1"}
STALE_IMAGES = (
    "it must run with SGLANG_VLM_CACHE_SIZE_MB=0, which cannot be checked from here; otherwise it encodes pictures with the vision "
    "tower of older weights"
)

logger = logging.getLogger(__name__)


def external_url(address: str) -> str:
    """Return the base URL of ``host:port``; return a URL unchanged.

    Raises:
        ConfigError: the address has no port.
    """
    url = httpx.URL(address if "://" in address else f"http://{address}")
    if not url.host or not url.port:
        raise ConfigError(f"--rollout-external-engine-addrs {address}: write host:port")
    return str(url).rstrip("/")


class ExternalEngine(SGLangEngine):
    """The calls of `SGLangEngine` on an external server."""

    def __init__(self, args: Arguments, spec: EngineSpec, address: str) -> None:
        super().__init__(args, spec)
        self._address = external_url(address)
        self._ranks = 0
        self._helper: subprocess.Popen[str] | None = None

    def start(self, hold: bool = False) -> str:
        """Check the server and return its URL; ``hold`` is ignored, because its requests belong to its operator.

        Raises:
            EngineError: it does not answer like an SGLang server, or cannot take this run's weights.
        """
        info = self._get("/server_info")
        try:
            stages = int(info.get("pp_size") or 1)
            self._ranks = int(info["tp_size"]) * stages
        except (KeyError, TypeError, ValueError) as error:
            raise EngineError(
                self._explain(f"has no tp_size in /server_info ({error!r}); is it an SGLang server?")
            ) from error
        if stages > 1 and misses_stages(self._args):
            raise EngineError(self._explain(f"has {stages} pipeline stages: {STAGES_REFUSED}"))
        if uses_loader(self._args) and LOADER not in (info.get("custom_weight_loader") or []):
            raise EngineError(
                self._explain(
                    f"cannot load weights the way this run sends them; start it with --custom-weight-loader {LOADER}"
                )
            )
        if self._args.multimodal_keys:
            logger.warning("%s at %s: %s", self._spec.name, self.url(), STALE_IMAGES)
        logger.info("%s at %s serves %s on %d GPU(s)", self._spec.name, self.url(), info.get("model_path"), self._ranks)
        return self.url()

    def url(self) -> str:
        """Return the server's URL."""
        return self._address

    def alive(self) -> bool:
        """Return whether the server answers."""
        return self.health()

    def has_ended(self) -> bool:
        """Return False: the processes are external, and a server that loads weights may not answer."""
        return False

    def hosts(self) -> list[str]:
        """Return this machine's name if the server is on it, else a description of the server's machine."""
        local = httpx.URL(self._address).host in LOCAL_HOSTS
        return [this_host() if local else f"the machine of {self._address}"]

    def num_weight_ranks(self) -> int:
        """Return the server's number of ranks in the weight update group."""
        return self._ranks

    def pause_generation(self, mode: PauseMode = "retract") -> None:
        """Hold all requests until ``continue_generation`` or the end of this process."""
        self._note("held")
        super().pause_generation(mode)

    def begin_weight_update(self) -> None:
        """Open an update session; until it closes, the engine may hold a mix of old and new weights."""
        self._note("loading")
        super().begin_weight_update()

    def end_weight_update(self, weight_version: str | None = None) -> None:
        """Close the session; the weights are complete."""
        super().end_weight_update(weight_version)
        self._note("loaded")

    def continue_generation(self) -> None:
        """Continue the requests that ``pause_generation`` held."""
        super().continue_generation()
        self._note("free")

    def _note(self, word: str) -> None:
        """Tell `external_release` the engine's state; start it on the first call."""
        if self._helper is None:
            private_folder(self.process.log_path.parent)
            self._helper = start_script(Path(external_release.__file__), self.url(), str(self.process.log_path))
            self._helper.wait()  # it continues in a process that is not a child of this one
        tell(self._helper, word)

    def restart_if_dead(self, hold: bool = False) -> bool:
        """Return False: the server's operator restarts it."""
        return False

    def stop(self) -> None:
        """Leave the server as it is."""

    def kill(self) -> None:
        """Leave the server as it is."""

    def end_failed_update(self, starts: int) -> None:
        """Log what the operator must do, because the server may hold a mix of old and new weights."""
        logger.error(
            "%s at %s failed in a weight update; restart it, then this run with --resume",
            self._spec.name,
            self.url(),
        )

    def status(self) -> dict[str, Any]:
        """Return name and URL."""
        return {"name": self._spec.name, "url": self.url()}

    def _explain(self, problem: str) -> str:
        return f"{self._spec.name} at {self.url()} {problem}; restart it yourself, because the run does not manage --rollout-external-engine-addrs"
