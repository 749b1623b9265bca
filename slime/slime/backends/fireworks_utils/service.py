"""What stands behind ``--train-backend fireworks``, with the face of `slime.backends.tinker_utils.service.Service`.

Guarantees: what is rented is deleted at the end, or with ``--fireworks-keep`` named; token ids are all that Fireworks gets of a
conversation.
"""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

import tinker

from groundwork.exceptions import ConfigError
from groundwork.process import StopRequested
from groundwork.processors import load_tokenizer
from slime.args import Arguments, required
from slime.arguments.tinker import TRAIN, read_prices
from slime.backends.fireworks_utils.control import Rental, explained
from slime.backends.fireworks_utils.deployment import Completions, Deployment, DeploymentSampler, ModelSampler, Snapshot
from slime.backends.fireworks_utils.http import Connection
from slime.backends.fireworks_utils.training import Adapters
from slime.backends.tinker_utils.service import BASE, Meter, RefusedError


class FireworksService:
    """Owns a trainer job, a deployment and the connections to both.

    Attributes:
        address: where Fireworks answers.
        context: most tokens of a prompt with its reply; None if Fireworks does not say.
        meter: what was used.
        client: makes training clients.
    """

    address: str
    context: int | None
    client: Adapters

    def __init__(self, args: Arguments, stop: StopRequested | None = None) -> None:
        """``stop``: a signal that ends waiting for trainer job and deployment."""
        self._args, self._stop, self._resources = args, stop, ExitStack()
        self.model = required("--tinker-model", args.tinker_model)
        self.meter = Meter(read_prices(args.tinker_prices))

    def __enter__(self) -> FireworksService:
        """Create or find trainer job and deployment, and wait until both answer.

        Raises:
            ConfigError: the key is missing or refused, or see `Rental`.
            Stopped: a signal arrived.
        """
        args = self._args
        with ExitStack() as started:
            patient = Connection(self._stop)
            started.callback(patient.close)
            connection = Connection()
            started.callback(connection.close)
            tokenizer = load_tokenizer(str(args.hf_checkpoint))
            ends = frozenset(each for each in (tokenizer.eos_token_id,) if each is not None)
            self._rental = started.enter_context(Rental(args, patient))
            self.address, self.context = connection.address, self._rental.context
            self._completions = Completions(connection, self.meter, ends)
            started.callback(self._completions.close)
            self._deployment = Deployment(self._rental, connection, self._completions)
            self.client = Adapters(connection, self._revived, self.model, args.lora_rank)
            started.callback(self.client.close)
            self._resources = started.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        """Delete what was rented, or say how to, and close the connections."""
        self._resources.close()

    def _revived(self) -> tuple[str, str]:
        self._rental.revive()
        return self._rental.note.trainer, self._rental.gateway

    def base(self, model: str) -> ModelSampler:
        """Return the sampler of a model that this run does not train.

        Raises:
            ConfigError: it does not answer with token ids, though a judge or a penalty needs it.
        """
        sampler = ModelSampler(self._completions, model, BASE)
        if self._args.prm_enable or self._args.use_kl_loss:
            try:
                sampler.ask([1, 2], {"max_tokens": 1})
            except (tinker.TinkerError, RefusedError) as error:
                why = explained(error) if isinstance(error, tinker.TinkerError) else str(error)
                raise ConfigError(
                    f"{model} does not judge: {why}; name a model that answers without a deployment, or one of your "
                    "deployments, with --tinker-judge-model"
                ) from error
        return sampler

    def sampler(self, client: Any, version: str) -> DeploymentSampler:
        """Return the sampler of a snapshot, which ``save_weights_and_get_sampling_client`` named."""
        return DeploymentSampler(self._deployment, Snapshot(str(client), version), self._completions.threads)

    def forget(self, path: str) -> None:
        """No-op: Fireworks has no call that deletes one state; all go 30 days after their trainer job."""

    def train_tokens(self, tokens: int) -> None:
        """Count tokens of a forward and backward pass."""
        self.meter.add(TRAIN, tokens)
