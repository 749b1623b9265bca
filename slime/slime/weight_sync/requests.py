"""Encode the trainer's requests to `slime.weight_sync.engine_loader` inside an engine.

A request is a JSON object. It is sent as a tensor of its bytes, because SGLang's ``/update_weights_from_tensor`` passes only
tensors to a custom weight loader.
"""

from __future__ import annotations

import json
import pickle
from typing import Any

import torch
from torch import Tensor

REQUEST = "slime-request"
DATA = "slime-data"


def request_tensor(request: dict[str, Any]) -> Tensor:
    """Return the bytes of ``request`` as a tensor."""
    return torch.frombuffer(bytearray(json.dumps(request).encode()), dtype=torch.uint8)


def serialized(request: dict[str, Any]) -> bytes:
    """Return the pickled list of named tensors that carries ``request``."""
    return pickle.dumps([(REQUEST, request_tensor(request))])


def read_request(named_tensors: list[tuple[str, Tensor]]) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Return the request and the other tensors."""
    tensors = dict(named_tensors)
    request = tensors.pop(REQUEST)
    return json.loads(bytes(request.cpu().tolist())), tensors
