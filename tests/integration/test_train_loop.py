"""The whole loop on a CPU: Ray, a real engine, policy and critic; an engine that crashes twice, a killed trainer, a signal, a resumed
run, a clean end. Nothing that it starts can be reached from outside of the machine, or in Ray's folder by another user.
"""

from __future__ import annotations

import json
import signal
import stat
from pathlib import Path

import psutil
import pytest

from lab.testkit.logged import logged_records
from lab.testkit.processes import assert_all_gone, reachable_from_outside, title_of
from tests.helpers.driver import Driver, live_version

PPO = (
    *("--advantage-estimator", "ppo", "--num-critic-only-steps", "1", "--critic-lr", "1e-2"),
    *("--save-interval", "2"),
)


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
    records = logged_records(run_dir)
    found = [record for record in records if "eval/numbers" in record]
    assert len(found) == len(lines)
    for record in found:
        assert (record["eval/numbers/answers"], record["eval/words/answers"]) == (8, 2)
        assert record["eval/numbers/grader_no_answer"] == 8  # random weights write no box
        assert record["eval/numbers-pass@2"] == 0.0
        assert record["eval/words/response_len/max"] <= 8
        assert record["eval/numbers-aborted_ratio"] == record["eval/words-aborted_ratio"] == 0.0


def is_another(driver: Driver, server: psutil.Process) -> bool:
    """Whether an engine's server runs that is not ``server``."""
    return any("slime.backends.sglang_utils.server " in title_of(each) and each != server for each in driver.family())


@pytest.mark.timeout(900)
def test_train_crash_serve_stop_resume(repository: Path, tmp_path: Path, tiny_random_model: Path) -> None:
    run_dir = tmp_path / "run"
    # Twice as many groups as a batch needs: the surplus is aborted on the engine and goes on in the next batch.
    partial = ("--partial-rollout", "--over-sampling-batch-size", "4")
    evaluation = ("--eval-config", str(evaluation_sets(tmp_path)), "--eval-interval", "2")
    flags = (*PPO, "--num-rollout", "3", "--serve-when-done", *partial, *evaluation)
    driver = Driver(repository, run_dir, tiny_random_model, *flags)
    driver.wait_for("serving until")
    check_evaluations(driver, run_dir)
    url = driver.engine_url()
    assert live_version(url) == "2"
    steps = driver.steps()
    assert [line.split()[1] for line in steps] == ["0", "1", "2"]
    # the first step is the critic's alone, so the engines keep the weights they have
    assert [line.split()[-1] for line in steps] == ["0", "1", "2"]
    assert "critic   GPU 1" in driver.text()
    logged = logged_records(run_dir)
    assert len([row for row in logged if "train/value_loss" in row]) == 3

    assert not reachable_from_outside(driver.family())
    assert {each.nice() for each in driver.family()} == {psutil.Process().nice()}, "nobody is pushed aside"
    assert not [title for title in map(title_of, driver.family()) if "dashboard.py" in title or "autoscaler" in title]
    sockets = {place.laddr for each in driver.family() for place in each.net_connections("unix") if place.laddr}
    (folder,) = {each for place in sockets for each in Path(str(place)).parents if each.name.startswith("slime-ray-")}
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700

    server = driver.member("slime.backends.sglang_utils.server ")
    server.kill()
    driver.wait_until(lambda: is_another(driver, server), "the engine's next server")
    driver.member("slime.backends.sglang_utils.server ").kill()
    driver.wait_for("engine(s) restarted, sending the weights")
    driver.wait_until(lambda: live_version(url) == "2", "the weights on the new engine")

    family = driver.family()
    driver.process.send_signal(signal.SIGTERM)
    assert driver.wait_end() == 0, driver.text()
    assert_all_gone(family)
    for folder in ("checkpoints", "checkpoints/critic"):
        assert (run_dir / folder / "latest_checkpointed_iteration.txt").read_text().strip() == "3"

    function = "slime.rollout.fully_async_rollout.generate_rollout_fully_async"
    (run_dir / "hold").touch()
    resumed = Driver(
        *(repository, run_dir, tiny_random_model, *PPO, "--num-rollout", "6", "--resume", "--serve-when-done"),
        *("--rollout-function-path", function, "--over-sampling-batch-size", "4"),
        *("--custom-rm-path", "lab.testkit.rewards.prefer_even_ids_when_free"),
    )
    # The policy's rank dies while a group waits for its reward, without which the run has no third batch: groups that the
    # first run left finished are fewer. The trainer starts again and the engine gets its weights.
    resumed.wait_until((run_dir / "held").exists, "a group of this run")
    resumed.member("ray::FSDPTrainActor").kill()
    (run_dir / "hold").unlink()
    resumed.wait_for("continuing at rollout ")
    resumed.wait_for("serving until")
    assert "training rank 0 died in" in resumed.text()
    steps = [line.split()[1] for line in resumed.steps()]
    assert (sorted(set(steps)), steps[-1]) == (["3", "4", "5"], "5")
    assert live_version(resumed.engine_url()) == "5"
    family = resumed.family()
    resumed.process.kill()
    resumed.process.wait()
    assert_all_gone(family)
