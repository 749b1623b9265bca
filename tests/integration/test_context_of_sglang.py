"""The longest context that a plan allows a model is the one from which SGLang derives an engine's."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from slime.backends.sglang_utils.server import engine_environment
from slime.utils.model_config import context_limit
from tests.helpers.checkpoints import QWEN3_4B, config_only

PLAIN = {"rope_type": "default", "rope_theta": 1e6}
CHANGES: dict[str, dict[str, object]] = {
    "stated": {},
    "short": {"max_position_embeddings": 1234},
    "another-key": {"model_max_length": 777},
    "plain": {"rope_parameters": PLAIN},
    "linear": {"rope_scaling": {"type": "linear", "factor": 2.0}},
    "dynamic": {"rope_parameters": {**PLAIN, "rope_type": "dynamic", "factor": 2.0}},
    "yarn": {"rope_scaling": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}},
    "yarn-of-the-stated": {"rope_scaling": {"rope_type": "yarn", "factor": 4.0}},
    "llama3": {
        "rope_parameters": {
            **PLAIN,
            "rope_type": "llama3",
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
        }
    },
}
ASK = """
import json, sys
from sglang.srt.utils.hf_transformers import get_context_length, get_hf_text_config
from sglang.srt.utils.hf_transformers.config import get_config
print(json.dumps([get_context_length(get_hf_text_config(get_config(f, trust_remote_code=False))) for f in sys.argv[1:]]))
"""


def test_a_limit_is_sglangs(repository: Path, tmp_path: Path) -> None:
    folders = [config_only(tmp_path / name, **changes) for name, changes in CHANGES.items()]
    paths = os.pathsep.join([str(repository), str(repository / "slime")])
    done = subprocess.run(
        [sys.executable, "-c", ASK, *map(str, folders)],
        env=engine_environment(os.environ | {"PYTHONPATH": paths}, cpu=True),
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    of_sglang = json.loads(done.stdout.splitlines()[-1])
    assert [context_limit(QWEN3_4B | changes) for changes in CHANGES.values()] == of_sglang
    assert len(set(of_sglang)) == 4
