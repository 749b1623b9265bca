"""The data source: order, epochs, buffer, and a position that a checkpoint restores."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest
import torch

from groundwork.exceptions import ConfigError
from slime.args import Arguments
from slime.exceptions import CheckpointError
from slime.rollout.data_source import DataSource, RolloutDataSource, RolloutDataSourceWithBuffer, read_rows
from slime.utils.types import Sample


@pytest.fixture
def args(tmp_path: Path) -> Arguments:
    file = tmp_path / "prompts.jsonl"
    rows = [{"q": f"question {number}", "a": str(number), "metadata": {"row": number}} for number in range(5)]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return Arguments(
        prompt_data=str(file),
        input_key="q",
        label_key="a",
        metadata_key="metadata",
        tool_key="tools",
        multimodal_keys=None,
        apply_chat_template=False,
        apply_chat_template_kwargs={},
        rollout_global_dataset=True,
        rollout_shuffle=False,
        rollout_seed=42,
        n_samples_per_prompt=2,
        buffer_filter_path=None,
        save=str(tmp_path / "save"),
        load=str(tmp_path / "save"),
        hf_checkpoint=None,
    )


def prompts(groups: list) -> list[str]:
    return [group[0].prompt for group in groups]


def test_groups_are_copies_with_running_numbers(args: Arguments) -> None:
    groups = RolloutDataSource(args).get_samples(2)
    assert [[(s.group_index, s.index, s.label) for s in group] for group in groups] == [
        [(0, 0, "0"), (0, 1, "0")],
        [(1, 2, "1"), (1, 3, "1")],
    ]
    groups[0][0].metadata["row"] = "changed"
    assert groups[0][1].metadata == {"row": 0}


def test_epochs_go_round_and_shuffle_depends_on_the_seed(args: Arguments) -> None:
    plain = RolloutDataSource(args)
    assert prompts(plain.get_samples(7)) == [f"question {n}" for n in (0, 1, 2, 3, 4, 0, 1)]
    args.rollout_shuffle = True
    first, second = RolloutDataSource(args), RolloutDataSource(args)
    order = prompts(first.get_samples(10))
    assert order == prompts(second.get_samples(10))
    assert sorted(order[:5]) == sorted(order[5:]) == [f"question {n}" for n in range(5)]
    assert order[:5] != order[5:]


def test_a_checkpoint_restores_position_and_buffer(args: Arguments) -> None:
    args.rollout_shuffle = True
    source = RolloutDataSourceWithBuffer(args)
    groups = source.get_samples(4)
    source.add_samples([groups[1], groups[2][:1]])
    source.save(3)
    expected = prompts(source.get_samples(8))
    later = RolloutDataSourceWithBuffer(args)
    later.load(3)
    assert prompts(later.get_samples(8)) == expected
    assert expected[:2] == [groups[1][0].prompt, groups[2][0].prompt]


def test_load_before_the_first_rollout_is_the_start(args: Arguments) -> None:
    source = RolloutDataSource(args)
    source.load(-1)
    source.load(None)
    assert prompts(source.get_samples(1)) == ["question 0"]
    with pytest.raises(CheckpointError, match="global_dataset_state_dict_7"):
        source.load(7)


def test_blank_samples_without_a_dataset(args: Arguments) -> None:
    args.rollout_global_dataset, args.prompt_data = False, None
    source = RolloutDataSourceWithBuffer(args)
    assert [(s.prompt, s.index) for s in source.get_samples(1)[0]] == [("", 0), ("", 1)]
    source.save(0)
    source.load(0)


def test_rows_of_parquet_and_slices(tmp_path: Path, args: Arguments) -> None:
    import pyarrow
    import pyarrow.parquet

    file = tmp_path / "rows.parquet"
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist([{"q": str(n)} for n in range(6)]), file)
    assert [row["q"] for row in read_rows(str(file))] == list("012345")
    assert [row["q"] for row in read_rows(f"{file}@[1:3]")] == ["1", "2"]
    assert [row["q"] for row in read_rows(f"{args.prompt_data}@[-2:]")] == ["question 3", "question 4"]


def test_a_line_ends_at_a_newline_and_at_no_other_separator(tmp_path: Path) -> None:
    rows = [{"q": "one\u2028two\x85three"}, {"q": "four"}]
    file = tmp_path / "x.jsonl"
    file.write_bytes("\r\n".join(json.dumps(row, ensure_ascii=False) for row in rows).encode())
    assert read_rows(str(file)) == rows


def test_an_epoch_is_shuffled_once(args: Arguments, monkeypatch: pytest.MonkeyPatch) -> None:
    args.rollout_shuffle = True
    source, seeds = RolloutDataSource(args), []
    make = random.Random

    def counted(seed: int) -> random.Random:
        seeds.append(seed)
        return make(seed)

    monkeypatch.setattr("slime.rollout.data_source.random.Random", counted)
    source.get_samples(12)
    assert seeds == [42, 43, 44]


@pytest.mark.parametrize(
    ("name", "text", "says"),
    [
        ("x.csv", "a", ".jsonl"),
        ("x.jsonl", "{", "x.jsonl"),
        ("x.json", '{"q": "alone"}', "every row must be an object"),
        ("x.jsonl", '"text"', "every row must be an object"),
    ],
)
def test_files_of_another_form(tmp_path: Path, name: str, text: str, says: str) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(ConfigError, match=says):
        read_rows(str(tmp_path / name))
    with pytest.raises(ConfigError, match="no such file"):
        read_rows(str(tmp_path / "missing.jsonl"))


def test_a_missing_column_is_named_with_those_there_are(args: Arguments) -> None:
    args.input_key = "question"
    with pytest.raises(ConfigError, match=r"no column 'question'; it has a, metadata, q"):
        RolloutDataSource(args)


def test_columns_have_the_names_of_the_flags(args: Arguments, tmp_path: Path) -> None:
    row = {"task": "say hi", "gold": "hi", "extra": {"row": 7}, "functions": [{"name": "wave"}]}
    file = tmp_path / "named.jsonl"
    file.write_text(json.dumps(row) + "\n")
    args.prompt_data, args.input_key, args.label_key = str(file), "task", "gold"
    args.metadata_key, args.tool_key = "extra", "functions"
    sample = RolloutDataSource(args).get_samples(1)[0][0]
    assert (sample.prompt, sample.label) == ("say hi", "hi")
    assert sample.metadata == {"row": 7, "tools": [{"name": "wave"}]}
    args.metadata_key = "gold"
    with pytest.raises(ConfigError, match="row 1: gold holds str, not an object"):
        RolloutDataSource(args)


def test_a_prompt_is_rendered_with_the_templates_arguments(args: Arguments, monkeypatch: pytest.MonkeyPatch) -> None:
    class Template:
        def apply_chat_template(self, messages: list, **given: object) -> str:
            return f"{messages[0]['content']} {given['enable_thinking']}"

    monkeypatch.setattr("groundwork.processors.load_tokenizer", lambda _: Template())
    args.apply_chat_template, args.apply_chat_template_kwargs = True, {"enable_thinking": False}
    assert RolloutDataSource(args).get_samples(1)[0][0].prompt == "question 0 False"


def test_longer_prompts_than_the_flag_allows_are_left_out(args: Arguments, monkeypatch: pytest.MonkeyPatch) -> None:
    class Words:
        def __call__(self, texts: list[str], **_: object) -> dict:
            return {"input_ids": [text.split() for text in texts]}

        def encode(self, text: str, **_: object) -> list[str]:
            return text.split()

    monkeypatch.setattr("groundwork.processors.load_tokenizer", lambda _: Words())
    rows = Path(args.prompt_data).read_text()
    Path(args.prompt_data).write_text(rows + json.dumps({"q": "a question of five words", "a": "5"}) + "\n")
    assert len(RolloutDataSource(args)) == 6
    args.rollout_max_prompt_len = 4
    assert len(RolloutDataSource(args)) == 5
    args.rollout_max_prompt_len = 1
    with pytest.raises(ConfigError, match="no prompt fits --rollout-max-prompt-len 1"):
        RolloutDataSource(args)


def test_the_buffer_is_filtered_by_the_flags_function(args: Arguments) -> None:
    args.buffer_filter_path = f"{__name__}.newest_first"
    source = RolloutDataSourceWithBuffer(args)
    source.add_samples(source.get_samples(3))
    assert prompts(source.get_samples(2)) == ["question 2", "question 1"]


def newest_first(args: Arguments, rollout_id: int | None, buffer: list, num_samples: int) -> list:
    """Take the groups that came last."""
    return [buffer.pop() for _ in range(min(num_samples, len(buffer)))]


def test_a_source_needs_no_length() -> None:
    class Plugin(DataSource):
        def get_samples(self, num_samples: int) -> list:
            return []

        def add_samples(self, samples: list) -> None: ...

        def save(self, rollout_id: int) -> None: ...

        def load(self, rollout_id: int | None = None) -> None: ...

    assert Plugin().get_samples(1) == []


def test_a_checkpoint_holds_the_position_of_its_rollout_though_the_next_is_under_way(args: Arguments) -> None:
    source = RolloutDataSourceWithBuffer(args)
    source.get_samples(2)
    source.mark(0)
    source.get_samples(1)
    source.save(0)
    resumed = RolloutDataSourceWithBuffer(args)
    resumed.load(0)
    assert prompts(resumed.get_samples(1)) == ["question 2"]


def test_marks_of_rollouts_that_are_never_saved_are_forgotten(args: Arguments) -> None:
    source = RolloutDataSourceWithBuffer(args)
    for rollout_id in range(4):
        source.get_samples(1)
        source.mark(rollout_id)
    assert list(source._marks) == [1, 2, 3]
    source.save(1)
    written = torch.load(source._file(args.save, 1), weights_only=False)
    source.save(1)  # again, after a loss before the checkpoint was published
    assert torch.load(source._file(args.save, 1), weights_only=False) == written
    source.save(2)
    assert list(source._marks) == [2, 3]
    resumed = RolloutDataSourceWithBuffer(args)
    resumed.load(1)
    assert prompts(resumed.get_samples(1)) == ["question 2"]


def test_fanned_out_groups_and_those_under_way_are_part_of_a_checkpoint(args: Arguments) -> None:
    source = RolloutDataSourceWithBuffer(args)
    step = Sample(index=7, tokens=[1, 2], response_length=1, reward=1.0, status=Sample.Status.COMPLETED)
    source.add_samples([[[step, step], Sample(index=8)], []])
    source.outstanding = lambda: [[Sample(index=9, prompt="under way")]]
    source.save(0)
    resumed = RolloutDataSourceWithBuffer(args)
    resumed.load(0)
    (steps, other), (late,) = resumed.get_samples(2)
    assert steps == [step, step]
    assert (other.index, late.prompt) == (8, "under way")
    assert prompts(resumed.get_samples(1)) == ["question 0"]


def test_tools_of_a_row_stay_with_its_prompt(args: Arguments) -> None:
    args.prompt_data = str(Path(args.prompt_data).with_name("tools.jsonl"))
    Path(args.prompt_data).write_text(json.dumps({"q": "x", "a": "1", "tools": [{"name": "f"}]}))
    assert RolloutDataSource(args).get_samples(1)[0][0].metadata == {"tools": [{"name": "f"}]}
