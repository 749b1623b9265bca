"""The whole loop on a CPU: Ray, a real engine, policy and critic; an engine crash, a signal, a resumed run, a clean end."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import httpx
import psutil
import pytest

WAIT_SECONDS = 300


class Driver:
    """A run of ``train_async.py`` with its output in a file."""

    def __init__(self, repository: Path, run_dir: Path, model: Path, *flags: str) -> None:
        prompts = run_dir / "prompts.jsonl"
        run_dir.mkdir(parents=True, exist_ok=True)
        prompts.write_text("\n".join(json.dumps({"prompt": f"def f{number}(x):"}) for number in range(40)))
        self.output = run_dir / f"driver-{len(list(run_dir.glob('driver-*')))}.log"
        command = f"""slime/train_async.py --device cpu --hf-checkpoint {model} --run-dir {run_dir}
            --advantage-estimator ppo --num-critic-only-steps 1 --critic-lr 1e-2
            --actor-num-gpus-per-node 1 --rollout-num-gpus 1 --rollout-batch-size 2 --n-samples-per-prompt 4
            --prompt-data {prompts} --input-key prompt --rollout-max-response-len 24
            --custom-rm-path tests.helpers.rewards.prefer_even_ids --use-dynamic-batch-size --max-tokens-per-gpu 512
            --lr 1e-3 --save {run_dir}/checkpoints --save-interval 2 --rollout-health-check-interval 1""".split()
        environment = {**os.environ, "PYTHONPATH": f"{repository / 'slime'}{os.pathsep}{repository}"}
        with self.output.open("wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, *command, *flags], cwd=repository, env=environment, stdout=log, stderr=log
            )

    def text(self) -> str:
        return self.output.read_text(errors="replace")

    def wait_for(self, words: str) -> None:
        self.wait_until(lambda: words in self.text(), f"{words!r}")

    def wait_until(self, condition: Callable[[], bool], what: str) -> None:
        deadline = time.monotonic() + WAIT_SECONDS
        while time.monotonic() < deadline and self.process.poll() is None:
            if condition():
                return
            time.sleep(0.1)
        assert condition(), f"waiting for {what}; the driver's output:\n{self.text()}"

    def engine_url(self) -> str:
        line = next(line for line in self.text().splitlines() if line.startswith("policy engine: "))
        return line.removeprefix("policy engine: ")

    def family(self) -> list[psutil.Process]:
        return psutil.Process(self.process.pid).children(recursive=True)


def assert_all_gone(processes: list[psutil.Process]) -> None:
    _, alive = psutil.wait_procs(processes, timeout=30)
    assert not [process for process in alive if process.status() != psutil.STATUS_ZOMBIE]


def live_version(url: str) -> str | None:
    try:
        return httpx.get(f"{url}/model_info", timeout=5, trust_env=False).json()["weight_version"]
    except httpx.TransportError:
        return None


def evaluation_sets(folder: Path) -> Path:
    """Two sets: four prompts twice under ``math``, two prompts once under ``f1``."""
    rows = folder / "evaluation.jsonl"
    rows.write_text("\n".join(json.dumps({"prompt": f"{n} + 1 =", "gold": str(n + 1)}) for n in range(4)))
    config = folder / "evaluation.yaml"
    config.write_text(
        f"""eval:
  defaults: {{label_key: gold, max_response_len: 8}}
  datasets:
    - {{name: numbers, path: {rows}, rm_type: math, n_samples: 2}}
    - {{name: words, path: "{rows}@[0:2]", rm_type: f1, temperature: 0}}
"""
    )
    return config


def check_evaluations(driver: Driver, run_dir: Path) -> None:
    """The weights after the second rollout were evaluated on both sets, each with its own numbers."""
    lines = [line for line in driver.text().splitlines() if line.startswith("evaluation at ")]
    assert lines[-1].split()[2:6] == ["1", "numbers", "0.000", "words"]
    records = [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]
    found = [record for record in records if "eval/numbers" in record]
    assert len(found) == len(lines)
    for record in found:
        assert (record["eval/numbers/answers"], record["eval/words/answers"]) == (8, 2)
        assert record["eval/numbers/grader_no_answer"] == 8  # random weights write no box
        assert record["eval/numbers-pass@2"] == 0.0
        assert record["eval/words/response_len/max"] <= 8
        assert record["eval/numbers-aborted_ratio"] == record["eval/words-aborted_ratio"] == 0.0


@pytest.mark.timeout(900)
def test_train_crash_serve_stop_resume(repository: Path, tmp_path: Path, tiny_random_model: Path) -> None:
    run_dir = tmp_path / "run"
    # Twice as many groups as a batch needs: the surplus is aborted on the engine and goes on in the next batch.
    partial = ("--partial-rollout", "--over-sampling-batch-size", "4")
    evaluation = ("--eval-config", str(evaluation_sets(tmp_path)), "--eval-interval", "2")
    flags = ("--num-rollout", "3", "--serve-when-done", *partial, *evaluation)
    driver = Driver(repository, run_dir, tiny_random_model, *flags)
    driver.wait_for("serving until")
    check_evaluations(driver, run_dir)
    url = driver.engine_url()
    assert live_version(url) == "2"
    steps = [line for line in driver.text().splitlines() if line.startswith("step ")]
    assert [line.split()[1] for line in steps] == ["0", "1", "2"]
    # the first step is the critic's alone, so the engines keep the weights they have
    assert [line.split()[-1] for line in steps] == ["0", "1", "2"]
    assert "critic   GPU 1" in driver.text()
    logged = [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]
    assert len([row for row in logged if "train/value_loss" in row]) == 3

    server = next(process for process in driver.family() if "sglang_utils.server" in " ".join(process.cmdline()))
    server.kill()
    driver.wait_for("engine(s) started again, sending the weights")
    driver.wait_until(lambda: live_version(url) == "2", "the weights on the new engine")

    family = driver.family()
    driver.process.send_signal(signal.SIGTERM)
    assert driver.process.wait(60) == 0, driver.text()
    assert_all_gone(family)
    for folder in ("checkpoints", "checkpoints/critic"):
        assert (run_dir / folder / "latest_checkpointed_iteration.txt").read_text().strip() == "3"

    function = "slime.rollout.fully_async_rollout.generate_rollout_fully_async"
    resumed = Driver(
        *(repository, run_dir, tiny_random_model, "--num-rollout", "6", "--resume", "--serve-when-done"),
        *("--rollout-function-path", function, "--over-sampling-batch-size", "4"),
    )
    resumed.wait_for("serving until")
    assert [line.split()[1] for line in resumed.text().splitlines() if line.startswith("step ")] == ["3", "4", "5"]
    assert live_version(resumed.engine_url()) == "5"
    family = resumed.family()
    resumed.process.kill()
    resumed.process.wait()
    assert_all_gone(family)
