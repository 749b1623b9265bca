"""The checkers: a plugin that breaks one clause is rejected with exactly that clause, and good ones pass; the commands."""

from __future__ import annotations

from pathlib import Path

import pytest

from slime.contract import CLAUSES, KINDS, ContractViolation, check
from slime.contract.__main__ import main
from slime.contract.check import CHECKERS, named_plugins
from slime.exceptions import PluginError
from tests.helpers.bad_plugins import path_of
from tests.helpers.contract_plugins import OWN, named

BAD = "tests.helpers.bad_plugins.reward"


@pytest.mark.parametrize("clause", CLAUSES)
def test_a_plugin_that_breaks_a_clause_is_rejected_with_it(clause: str) -> None:
    kind = clause.rpartition("-")[0]
    with pytest.raises(ContractViolation, match=f"^clause {clause}: the plugin ") as caught:
        check(kind, path_of(clause))
    assert caught.value.clause == clause
    assert all(each.clause.rpartition("-")[0] == kind for each in caught.value.others)


def test_every_kind_has_a_checker_and_an_option() -> None:
    assert set(CHECKERS) == set(KINDS) == set(OWN)
    assert len({kind.option for kind in KINDS.values()}) == len(KINDS)


def test_the_flags_of_a_launch_command_name_the_plugins() -> None:
    words = "--lr 1e-5 --custom-rm-path a.b --loss-type custom_loss --rollout-sample-hook-path c.d e.f --rollout-sample-hook-path g.h"
    assert named_plugins(words.split()) == [
        ("reward", "a.b"),
        ("sample_hook", "c.d"),
        ("sample_hook", "e.f"),
        ("sample_hook", "g.h"),
    ]


def test_the_command_says_what_it_accepts_and_rejects(capsys: pytest.CaptureFixture[str]) -> None:
    good = ["--custom-loss-function-path", "tests.helpers.good_plugins.likelihood"]
    assert main(good) == 0
    assert capsys.readouterr().out == f"accepted {good[0]} {good[1]}: 8 clauses\n"
    assert main([*good, "--custom-rm-path", f"{BAD}.reward_6"]) == 1
    text = capsys.readouterr().out
    assert f"rejected --custom-rm-path {BAD}.reward_6\n  clause reward-6: the plugin returns an empty list" in text
    assert main(["--custom-rm-path", "no_such_module.fn"]) == 1
    assert "no module 'no_such_module'" in capsys.readouterr().out
    assert main(["--lr", "1e-5"]) == 2
    assert main(["--help"]) == 0
    assert main(["--clauses"]) == 0
    assert capsys.readouterr().out.count("the plugin ") >= len(CLAUSES)


def test_every_broken_clause_is_named_at_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "my_reward.py"
    file.write_text("def reward_func(args, sample, **kwargs):\n    return None\n")
    assert main(["--custom-rm-path", str(file)]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[1] for line in lines[1:]] == ["reward-2:", "reward-4:", "reward-5:", "reward-6:"]
    with pytest.raises(ContractViolation) as caught:
        check("reward", str(file))
    assert [each.clause for each in caught.value.others] == ["reward-4", "reward-5", "reward-6"]


def test_a_live_source_is_recognised(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend("openclaw-rl")
    names = ("openclaw_rollout.generate_rollout_openclaw", "openclaw.training.rollout.LedgerDataSource")
    words = ["--rollout-function-path", names[0], "--data-source-path", names[1]]
    assert main(words) == 0
    first, second = capsys.readouterr().out.splitlines()
    assert first.startswith(f"live     --rollout-function-path {names[0]}: it learns from conversations")
    assert first.endswith("python -m openclaw.method check openclaw-rl")
    assert second.endswith("python -m openclaw.method check FOLDER")


def test_flags_of_the_run_reach_the_plugin() -> None:
    path = "slime.rollout.sglang_rollout.generate_rollout"
    check("rollout", path, ["--n-samples-per-prompt", "3", "--reward-key", "score"])
    with pytest.raises(ContractViolation, match="clause rollout-3"):
        check("rollout", path, ["--custom-rm-path", f"{BAD}.reward_3"])


def test_files_of_arguments_reach_the_plugin(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "my_reward.py").write_text(
        "async def reward_func(args, sample, **kwargs):\n"
        "    return [args.my_bonus for _ in sample] if isinstance(sample, list) else args.my_bonus\n"
    )
    (tmp_path / "own.yaml").write_text("my_bonus: 0.5\n")
    (tmp_path / "flags.yaml").write_text(f"custom-rm-path: {tmp_path / 'my_reward.py'}\n")
    flags = ["--config", str(tmp_path / "flags.yaml")]
    assert main(flags) == 1
    assert "has no attribute 'my_bonus'" in capsys.readouterr().out
    assert main([*flags, "--custom-config-path", str(tmp_path / "own.yaml")]) == 0
    (tmp_path / "flags.yaml").write_text("custom-rm-pat: my_reward.py\n")
    assert main(flags) == 2
    assert "did you mean --custom-rm-path" in capsys.readouterr().out


def test_a_mistyped_flag_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["--rollout-functon-path", "a.b"])
    said = capsys.readouterr()
    assert (ended.value.code, said.out) == (2, "")
    assert said.err == (
        "slime.contract: unknown argument --rollout-functon-path; did you mean --rollout-function-path?\n"
    )
    assert main(["--lr", "1e-5"]) == 2
    assert capsys.readouterr().out == "no flag names a plugin; --help lists the flags that do\n"


def test_a_file_is_a_plugin_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "my_loss.py").write_text("def compute_loss(args, batch, logits, sum_of_sample_mean):\n    return 1\n")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ContractViolation, match="clause loss-3"):
        check("loss", "./my_loss.py")
    with pytest.raises(PluginError, match="has no 'other'"):
        check("loss", "./my_loss.py:other")


def test_the_instructions_have_every_clause(repository: Path) -> None:
    text = "".join(page.read_text() for page in (repository / "instructions" / "reference").glob("clauses_*.md"))
    for kind in KINDS.values():
        assert f"`{kind.flag}`: {kind.called}." in text
    for clause, words in CLAUSES.items():
        assert f"| {clause} | {words.replace('|', chr(92) + '|')} |" in text, clause


def test_a_plugin_is_named_by_option_or_by_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    class Config:
        def __init__(self, **given: str) -> None:
            self.given = given

        def getoption(self, name: str, default: str | None = None) -> str | None:
            return self.given.get(name, default)

    assert named(Config(), "loss") is None  # type: ignore[arg-type]
    monkeypatch.setenv("SLIME_CONTRACT_CUSTOM_LOSS_FUNCTION_PATH", "by.environment")
    assert named(Config(), "loss") == "by.environment"  # type: ignore[arg-type]
    assert named(Config(plugin_custom_loss_function_path="by.option"), "loss") == "by.option"  # type: ignore[arg-type]
