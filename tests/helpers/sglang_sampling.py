"""SGLang's own `SamplingParams`, loaded from its file, because its package cannot be imported without a GPU's libraries."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest.mock import patch

import msgspec

WATERMARKS = "sglang.srt.sampling.watermarking.core"


class NoWatermark(msgspec.Struct):
    """Stands in for a class that no request of ours uses."""


def sampling_params() -> Any:
    """Return the class."""
    package = importlib.util.find_spec("sglang")
    assert package is not None
    assert package.origin is not None
    path = Path(package.origin).parent / "srt/sampling/sampling_params.py"
    spec = importlib.util.spec_from_file_location("sampling_params_of_sglang", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    watermarks = ModuleType(WATERMARKS)
    vars(watermarks).update(WatermarkRequestConfig=NoWatermark, normalize_watermark_request=lambda value: value)
    parts = WATERMARKS.split(".")
    parents = {".".join(parts[:n]): ModuleType(parts[n - 1]) for n in range(1, len(parts))}
    with patch.dict(sys.modules, {**parents, WATERMARKS: watermarks, spec.name: module}):
        spec.loader.exec_module(module)
    return module.SamplingParams
