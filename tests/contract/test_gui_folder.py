"""Every name of the folder ``gui-rl/``, called as it is documented."""

from __future__ import annotations

import asyncio
import inspect
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import generate_with_gui
import httpx
import pytest
from gui_data_source import GuiMetaDataSource
from gui_flags import GuiConfig
from gui_task import Task as GuiTask

from agentrl.environment import Task, load_environment
from agentrl.pool import build_parser as pool_parser
from agentrl.rollout import generate as loop
from agentrl.tasks.gui.source import GuiSource, domain_of, write_rows
from groundwork.exceptions import ConfigError
from groundwork.processors import (
    encode_image_for_rollout_engine,
    load_processor,
    load_tokenizer,
    process_vision_info,
)
from lab.testkit.agent_rollouts import talk
from openclaw.launch.__main__ import main as launch
from openclaw.ledger.records import Vote
from slime.args import Arguments
from slime.arguments.dry_run import of_machine
from slime.arguments.evaluation import EvalDataset
from slime.arguments.model_shape import check_trainable
from slime.arguments.parser import parser_for, read_arguments
from slime.arguments.plugins import missing_plugins
from slime.rollout.base_types import RolloutFnEvalOutput, RolloutFnTrainOutput
from slime.rollout.data_source import DataSource
from slime.rollout.rm_hub import batched_async_rm
from slime.rollout.sglang_rollout import GenerateState, generate_and_rm, generate_rollout
from slime.utils import http_utils
from slime.utils.async_utils import run
from slime.utils.http_utils import post
from slime.utils.mask_utils import MultiTurnLossMaskGenerator
from slime.utils.misc import SingletonMeta, load_function
from slime.utils.types import Sample
from tests.helpers import tiny_vision
from tests.helpers.agent_stages import END, PARAMETERS, staged, staged_behind
from tests.helpers.launch_plans import ended, task_of, task_plan
from tests.helpers.pictures import picture

ROOT = Path(__file__).resolve().parents[2]
PLUGINS = {
    "custom_generate_function_path": "generate_with_gui.generate",
    "custom_rm_path": "generate_with_gui.reward_func",
}
PLUGIN_FLAGS = ("--custom-generate-function-path", "generate_with_gui.generate")
SCRIPTS = ("gui_qwen3vl_8b_rl", "gui_qwen3vl_8b_prm_rl", "run_gui_rl")


def launch_status(*words: str) -> int:
    """Return the exit status of the launcher on screen tasks."""
    try:
        launch(["--task", "gui", *words])
    except SystemExit as stopped:
        return int(stopped.code or 0)
    return 0


def planned(judge: bool, folder: Path, **values: str) -> Arguments:
    """Return the arguments of a script's run; they must be valid on the machine that it is for."""
    words = ["--task", "gui", "--model", "qwen3-vl-8B", *(["--step-judge"] if judge else [])]
    plan = task_plan(words, RUN_DIR=str(folder), **values)
    assert [problem for problem in plan.problems if not of_machine(problem)] == []
    return plan.args


def flagged(args: Arguments, **values: Any) -> Arguments:
    """Return arguments with flags, also with those of the folder."""
    return Arguments.of({**vars(args), **values})


async def played(
    folder: Path, model: Path, monkeypatch: pytest.MonkeyPatch, replies: Sequence[str], task: Task, **flags: Any
) -> list[Sample]:
    async with staged(talk(task), replies, folder, model, monkeypatch) as on:
        found = await generate_with_gui.generate(flagged(on.args, **flags), on.sample(), dict(PARAMETERS))
        assert isinstance(found, list)
        return found


@pytest.mark.parametrize("judge", [False, True])
def test_the_flags_of_the_scripts(judge: bool, tmp_path: Path) -> None:
    told = {
        "GUI_EVAL_INTERVAL": "5",
        "MAX_STEPS": "12",
        "PRM_M": "3",
        "PRM_STEP_COEF": "0.5",
        "ROLLOUT_BATCH_SIZE": "4",
    }
    args = planned(judge, tmp_path, **told)
    assert missing_plugins(args) == []
    assert args.custom_generate_function_path == "generate_with_gui.generate"
    assert args.custom_rm_path == "generate_with_gui.reward_func"
    assert args.eval_function_path == "generate_with_gui.gui_generate_rollout"
    assert args.data_source_path == "gui_data_source.GuiMetaDataSource"
    of_folder = GuiConfig.of(args)
    assert (of_folder.gui_max_steps, of_folder.gui_eval_max_steps) == (12, 12)
    assert of_folder.gui_max_image_history_length == 3
    assert (args.rollout_batch_size, args.n_samples_per_prompt, args.train_backend) == (4, 8, "fsdp")
    assert args.advantage_estimator == ("step_wise" if judge else "grpo")
    assert bool(args.prm_num_gpus) == judge
    if judge:
        assert (args.prm_m, args.prm_step_coef, of_folder.gui_max_reward_image_history_length) == (3, 0.5, None)
    seen = GuiConfig.of(planned(True, tmp_path, GUI_MAX_REWARD_IMAGE_HISTORY_LENGTH="2"))
    assert seen.gui_max_reward_image_history_length == 2


def test_variables_of_the_loop_reach_a_scripts_episodes(tmp_path: Path) -> None:
    """The scripts write flags, which win over variables; so the flags must have what the variables say."""
    told = {"AGENTRL_MAX_TURNS": "4", "AGENTRL_KEEP_PICTURES": "5", "AGENTRL_JUDGE_PICTURES": "6"}
    settings = GuiConfig.of(planned(True, tmp_path, **told)).settings(evaluation=False, environment=told)
    assert (settings.max_turns, settings.keep_pictures, settings.judge_pictures) == (4, 5, 6)
    settings = GuiConfig.of(planned(True, tmp_path)).settings(evaluation=False, environment={})
    assert (settings.max_turns, settings.keep_pictures, settings.judge_pictures) == (30, 3, 2)
    for names in (("MAX_GUI_STEPS", "AGENTRL_MAX_TURNS"), ("GUI_MAX_IMAGE_HISTORY_LENGTH", "AGENTRL_KEEP_PICTURES")):
        with pytest.raises(ConfigError, match=f"{names[0]} and {names[1]} name the same thing and differ"):
            GuiTask.from_env(dict(zip(names, ("2", "3"), strict=True)))


@pytest.mark.parametrize("script", SCRIPTS)
def test_variables_reach_the_dry_run_of_a_script(script: str) -> None:
    """That it is the same from three folders is in ``tests/integration/test_agent_scripts.py``."""
    told = {"GUI_EVAL_INTERVAL": "5", "PARALLEL_ENVS": "7", "GUI_FAMILIES": "click-test,click_link"}
    code, shown = ended(ROOT / "gui-rl" / f"{script}.sh", "--dry-run", **told)
    assert code == 0
    assert "200 to train on, 40 to evaluate on\n  screens  from a pool here with 7 slots, driven by playwright" in shown
    assert shown.splitlines()[-1] == "dry run: the plan is valid, nothing was started"


def test_an_evaluation_without_a_trainer_from_three_folders(capsys: pytest.CaptureFixture[str]) -> None:
    script = ROOT / "gui-rl" / "gui_qwen3vl_4b_eval.sh"
    folders = (ROOT, ROOT / "slime", ROOT / "gui-rl")
    (ran,) = {ended(script, "--dry-run", folder=folder, GUI_FAMILIES="click_link") for folder in folders}
    code, plan = ran
    assert code == 0
    assert "0 to train on, 20 to evaluate on" in plan
    assert "actor    none" in plan
    assert "rollout  0-7" in plan
    words = ["--task", "gui", "--model", "qwen3-vl-4B", "--name", "gui-qwen3vl-4b-eval", "--evaluate"]
    command = task_plan(words).command
    assert command[1] == str(ROOT / "slime" / "eval_only.py")
    flags = [*command[2:]]
    for name, value in (
        ("--eval-function-path", "generate_with_gui.gui_generate_rollout"),
        ("--custom-generate-function-path", "generate_with_gui.generate"),
        ("--hf-checkpoint", str(ROOT / "models" / "Qwen3-VL-4B")),
        ("--json", str(ROOT / "runs" / "gui-qwen3vl-4b-eval" / "scores.json")),
        ("--gui-eval-max-steps", "30"),
    ):
        assert flags[flags.index(name) + 1] == value
    assert launch_status(*words[2:], "--step-judge") == 2
    assert "leave out --step-judge" in capsys.readouterr().err


async def test_what_the_folder_imports_is_called_as_it_is_documented(tmp_path: Path) -> None:
    """The core's names that a folder of screens builds on."""
    model = str(tiny_vision.build(tmp_path / "model"))
    processor, tokenizer = load_processor(model), load_tokenizer(model)
    assert processor is not None
    image = picture(30, 30)
    url = encode_image_for_rollout_engine(image)
    messages: list[Any] = [
        {"role": "user", "content": [{"type": "image", "image": url}, {"type": "text", "text": "Press."}]},
        {"role": "assistant", "content": "Done."},
    ]
    media = process_vision_info(messages, processor)
    assert [each.size for each in media["images"]] == [(32, 32)]
    ids, mask = MultiTurnLossMaskGenerator(tokenizer, tokenizer_type="qwen3").get_loss_mask(messages)
    assert tokenizer.decode([token for token, kept in zip(ids, mask, strict=True) if kept]).startswith("Done.")
    text = tokenizer.apply_chat_template(messages, tokenize=False)
    made = processor(text=[text], **{name: value for name, value in media.items() if value})
    assert made["input_ids"][0].count(processor.image_token_id) == 16
    assert load_function("generate_with_gui.generate") is generate_with_gui.generate
    assert RolloutFnEvalOutput(data={"gui": {"rewards": [1.0]}}).data["gui"]["rewards"] == [1.0]
    assert issubclass(GuiMetaDataSource, DataSource)
    assert await asyncio.to_thread(run, asyncio.sleep(0, "done")) == "done"


async def test_post_sends_and_reads_json(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[str, dict[str, Any], str | None]] = []

    def answer(request: httpx.Request) -> httpx.Response:
        asked.append((str(request.url), json.loads(request.content), request.headers.get("X-SMG-Routing-Key")))
        return httpx.Response(503) if len(asked) == 1 else httpx.Response(200, json={"lease_id": "a"})

    client = httpx.AsyncClient(transport=httpx.MockTransport(answer))
    monkeypatch.setattr(http_utils, "_http_client", client)
    monkeypatch.setattr(http_utils, "FIRST_DELAY_SECONDS", 0.0)
    headers = {"X-SMG-Routing-Key": "7"}
    assert await post("http://pool/allocate", {"episode_id": "e"}, max_retries=2, headers=headers) == {"lease_id": "a"}
    assert asked == [("http://pool/allocate", {"episode_id": "e"}, "7")] * 2


async def test_generate_state_and_generate_and_rm_are_those_of_the_process(
    tmp_path: Path, tiny_random_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = Task("guess", {"steps": 2, "score": 1.0})
    async with staged(talk(task), [f"one{END}"], tmp_path, tiny_random_model, monkeypatch) as on:
        args = on.args.changed(**PLUGINS)
        state = GenerateState(args)
        assert GenerateState(args.changed(rollout_temperature=0.1)) is state, "the first args win"
        assert (state.tokenizer.decode(state.tokenizer("on").input_ids), state.processor) == ("on", None)
        assert (state.sampling_params["temperature"], state.sampling_params["no_stop_trim"]) == (0.6, True)
        assert state.semaphore._value == args.sglang_server_concurrency
        with state.dp_rank_context() as rank:
            assert rank == 0
        found = await generate_and_rm(args, on.sample(), dict(PARAMETERS), evaluation=False)
        assert isinstance(found, list)
        (sample,) = found
        assert (sample.reward["score"], sample.status) == (1.0, Sample.Status.COMPLETED)
        assert sample.loss_mask is not None
        asked = len(on.policy.requests)
        assert await generate_and_rm(args, sample, dict(PARAMETERS)) is sample, "a finished sample is not played again"
        assert len(on.policy.requests) == asked


def test_rollouts_are_collected_from_the_tasks_and_evaluated(
    tmp_path: Path, tiny_random_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`generate_rollout` takes groups of the folder's data source; `gui_generate_rollout` tells each domain."""
    tasks = [Task("guess/a", {"steps": 2, "score": 1.0}), Task("guess/b", {"steps": 2, "score": 0.5})]
    write_rows([each.id for each in tasks], tmp_path / "rows.jsonl")
    rows = {"prompt_data": str(tmp_path / "rows.jsonl"), "input_key": "prompt", "metadata_key": "metadata"}
    more = {"n_samples_per_prompt": 2, "label_key": None, "tool_key": "tools", "reward_key": "score"}
    with staged_behind(talk(*tasks), [f"one{END}"], tmp_path, tiny_random_model, monkeypatch) as on:
        args = on.args.changed(**PLUGINS, **rows, **more, eval_reward_key="acc")
        SingletonMeta.clear(GenerateState)  # its first args win
        output = generate_rollout(args, 0, GuiMetaDataSource(args), evaluation=False)
        assert isinstance(output, RolloutFnTrainOutput)
        groups: list[Any] = output.samples
        assert [len(group) for group in groups] == [2, 2]
        assert sorted(sample.reward["score"] for group in groups for (sample,) in group) == [-1.0, -1.0, 1.0, 1.0]
        args = args.changed(
            eval_datasets=[EvalDataset("gui", rows["prompt_data"], "prompt", None, "tools", 1, 0.0, 1.0, -1, 64)]
        )
        for evaluate in (generate_rollout, generate_with_gui.gui_generate_rollout):
            found = evaluate(args, 1, None, evaluation=True)
            assert isinstance(found, RolloutFnEvalOutput)
            assert found.data["gui"]["rewards"] == [1.0, 0.0]
        assert found.metrics == {"eval/gui/a": 1.0, "eval/gui/b": 0.0}


def test_megatron_with_vision_is_refused_by_name(tmp_path: Path) -> None:
    model = tiny_vision.build(tmp_path / "model")
    config = json.loads((model / "config.json").read_text())
    problems = check_trainable(Arguments(train_backend="megatron", hf_checkpoint=str(model)), config)
    assert any("vision-language model, which --train-backend megatron does not train" in each for each in problems)


def test_the_pool_has_the_tasks_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    task = task_of(task_plan(["--task", "gui"], ENV_TYPE="gui", PARALLEL_ENVS="16"))
    for kind, name in (("miniwob", "MiniWobEnvironment"), ("osworld", "OsWorldEnvironment")):
        monkeypatch.setenv("TASK_TYPE", kind)
        pool = pool_parser().parse_args(task.pool(tmp_path))
        assert pool.slots == 16
        assert load_environment(pool.env[0]).__name__ == name


def test_a_variable_that_names_nothing_is_told(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for variables, why in (
        ({"SCREENSHOT_BACKEND": "paper"}, "SCREENSHOT_BACKEND"),
        ({"GUI_FAMILIES": "fly"}, "there is no family fly"),
        ({"GUI_FAMILIES": "click_link"}, "only held-out families"),
        ({"TASK_TYPE": "osworld"}, "GUI_TEST_CONFIG_BASE_DIR is not set"),
    ):
        with pytest.MonkeyPatch.context() as patch:
            for name, value in variables.items():
                patch.setenv(name, value)
            assert launch_status("--model", "qwen3-vl-8B", "--dry-run") == 2
        assert why in capsys.readouterr().err


async def test_generate_and_reward_func(
    tmp_path: Path, tiny_random_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert [*inspect.signature(generate_with_gui.generate).parameters] == [
        *("args", "sample", "sampling_params", "evaluation")
    ]
    task = Task("guess", {"steps": 2, "score": 1.0})
    (sample,) = await played(tmp_path, tiny_random_model, monkeypatch, [f"one{END}"], task)
    assert sample.reward == {"score": 1.0, "outcome": 1.0, "acc": 1.0, "prm_turn_score": None}
    assert await generate_with_gui.reward_func(Arguments(), sample) == sample.reward
    assert await batched_async_rm(Arguments(custom_rm_path="generate_with_gui.reward_func"), [sample]) == [
        sample.reward
    ]
    assert await batched_async_rm(Arguments(custom_rm_path="generate_with_gui.reward_func"), []) == []
    with pytest.raises(ConfigError, match="the sample has no reward"):
        await generate_with_gui.reward_func(Arguments(), Sample())


async def test_limits_of_flags_hold(tmp_path: Path, tiny_random_model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    long = Task("guess", {"steps": 40})
    (sample,) = await played(tmp_path, tiny_random_model, monkeypatch, [f"one{END}"], long, gui_max_steps=2)
    assert (sample.metadata["agent"]["turns"], sample.metadata["agent"]["ending"]) == (2, "turns")
    tool: Any = {"type": "function", "function": {"name": "computer_use", "parameters": {"type": "object"}}}
    strict = Task("guess", {"steps": 40, "tools": [tool], "actions": "computer_use"})
    for reply in (
        "I look around.",
        '<tool_call>\n{"name": "computer_use", "arguments": {"action": "fly"}}\n</tool_call>',
    ):
        (sample,) = await played(tmp_path, tiny_random_model, monkeypatch, [reply + END], strict)
        assert sample.metadata["agent"]["malformed"] == 3, "three format errors end an episode"
        assert sample.metadata["agent"]["ending"] == "malformed"


async def test_the_judge_votes_on_each_step(
    tmp_path: Path, tiny_random_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Judge:
        async def votes(self, kind: Any, question: Any, count: int) -> list[Vote]:
            return [Vote(kind, "", value, None, 0.1) for value in (1, -1, 1)[:count]]

    monkeypatch.setattr(loop, "judge_of", lambda args: Judge())
    task = Task("guess", {"steps": 2, "score": 1.0})
    (sample,) = await played(tmp_path, tiny_random_model, monkeypatch, [f"one{END}"], task, prm_m=3, prm_step_coef=0.5)
    assert sample.reward["prm_turn_score"] == pytest.approx(1 / 3)
    assert sample.reward["score"] == pytest.approx(1 + 0.5 / 3)


def test_flags_reach_the_settings() -> None:
    words = ["--gui-max-steps", "7", "--gui-eval-max-steps", "9", "--gui-max-image-history-length", "2"]
    words += ["--gui-max-reward-image-history-length", "2", *PLUGIN_FLAGS]
    given = GuiConfig.of(parser_for(words).parse_args(words))
    settings = given.settings(evaluation=False, environment={})
    assert (settings.max_turns, settings.keep_pictures, settings.judge_pictures) == (7, 2, 3)
    assert given.settings(evaluation=True, environment={}).max_turns == 9
    plain = GuiConfig().settings(evaluation=False, environment={"GUI_ENV_SERVER_URL": "http://h:1"})
    assert (plain.max_turns, plain.keep_pictures, plain.max_malformed) == (15, 3, 3)
    assert plain.pool_url == "http://h:1"
    blind = {"GUI_OBSERVATION_TYPE": "a11y_tree", "AGENTRL_MAX_TURNS": "4"}
    settings = GuiConfig().settings(evaluation=False, environment=blind)
    assert (settings.judge_pictures, settings.max_turns) == (0, 4)


@pytest.mark.parametrize(
    ("attributes", "why"),
    [
        ({"gui_sleep_after_execution": 0.5}, "set GUI_SLEEP_AFTER_EXECUTION=0.5"),
        ({"gui_eval_sleep_after_execution": 5.0}, "set GUI_SLEEP_AFTER_EXECUTION=5"),
        ({"gui_wait_after_reset": 60.0}, "set GUI_WAIT_AFTER_RESET=60"),
        ({"gui_eval_wait_after_reset": 60.0}, "set GUI_WAIT_AFTER_RESET=60"),
        ({"gui_agent_class_path": "mine.Agent"}, "gui_agent_class_path 'mine.Agent' is unknown"),
        ({"gui_reward_agent_class_path": "mine.Judge"}, "gui_reward_agent_class_path"),
        ({"prm_max_concurrency": 32}, "prm_max_concurrency 32 has no effect"),
    ],
)
def test_a_value_that_would_change_nothing_is_refused(attributes: dict[str, Any], why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        GuiConfig.of(flagged(Arguments(), **attributes)).check({})
    waits = {"GUI_SLEEP_AFTER_EXECUTION": "0.5", "GUI_WAIT_AFTER_RESET": "60"}
    GuiConfig(gui_sleep_after_execution=0.5, gui_wait_after_reset=60.0).check(waits)


def test_the_data_source_lists_tasks_and_keeps_its_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GUI_FAMILIES", "click_test,click_link,enter_text")
    args = Arguments(run_dir=str(tmp_path), save=str(tmp_path), load=str(tmp_path), n_samples_per_prompt=2)
    source = GuiMetaDataSource(args)
    assert len(source) == 400, "a held-out family is not trained on"
    ((first, second),) = source.get_samples(1)
    assert first.metadata == {"task_id": "miniwob/click_test/train/0", "seed": 0, "domain": "click_test"}
    assert second.metadata == first.metadata
    source.save(3)
    assert (tmp_path / "rollout" / "gui_meta_state_dict_3.pt").is_file()
    again = GuiMetaDataSource(args)
    again.load(3)
    ((other, _),) = again.get_samples(1)
    assert other.metadata["task_id"] == "miniwob/enter_text/train/0"


def test_the_splits_are_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    source = GuiSource.from_env({})
    train, held = source.ids("train"), source.ids("heldout")
    assert not set(train) & set(held)
    assert {"click_link", "enter_password", "login_user"} == {*map(domain_of, held)} - {*map(domain_of, train)}


def test_the_evaluation_reports_each_domain() -> None:
    result = {"rewards": [1.0, 0.0, 1.0, 1.0], "aborted": [False, False, True, False], "groups": [0, 1, 1, 2]}
    found = generate_with_gui.by_domain("gui", result, ["a", "b", "a"])
    assert found == {"eval/gui/a": 1.0, "eval/gui/b": 0.0}
    with pytest.raises(ConfigError, match="evaluates only"):
        generate_with_gui.gui_generate_rollout(Arguments(), 0, None, evaluation=False)


def test_the_flags_of_the_folder_need_one_of_its_plugins(capsys: pytest.CaptureFixture[str]) -> None:
    """The core does not know them; so without a plugin of the folder they are unknown flags."""
    for words in (
        ["--gui-max-steps", "7"],
        ["--gui-max-steps", "7", "--custom-rm-path", "generate_with_gui.reward_func"],
    ):
        with pytest.raises(SystemExit, match="2"):
            read_arguments(parser_for(words), words)
        assert "--gui-max-steps" in capsys.readouterr().err
