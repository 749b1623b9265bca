"""Every GPU script prints its start order and its memory budget, fits its machine, and is refused on a smaller one with a line that fits."""

from __future__ import annotations

import itertools
import os
import re
from pathlib import Path

import pytest

from openclaw.launch.__main__ import main
from openclaw.launch.plan import Plan, Recipe
from openclaw.launch.profiles import PROFILES
from openclaw.launch.resolve import make_plan
from openclaw.models.places import released
from slime.arguments.memory_budget.gpu import GIB
from tests.unit.launch.test_scripts import CLEAN, GPU_SCRIPTS, plan_words

PAGE = (
    "openclaw-combine/run_qwen3_4b_openclaw_combine.sh",
    "openclaw-combine/run_qwen3_4b_openclaw_combine_lora.sh",
    "openclaw-combine/run_qwen3_8b_openclaw_combine.sh",
    "openclaw-combine/run_qwen3_8b_openclaw_combine_lora.sh",
    "openclaw-combine/run_qwen35_4b_openclaw_combine.sh",
    "openclaw-combine/run_qwen35_4b_openclaw_combine_lora.sh",
    "openclaw-combine/run_qwen3_1_7b_openclaw_combine_24gb.sh",
)
MAIN = "openclaw-combine/run_qwen3_4b_openclaw_combine.sh"
SMALL = "openclaw-combine/run_qwen3_1_7b_openclaw_combine_24gb.sh"


def plan_of(script: str, **environment: str) -> Plan:
    words = plan_words(script)
    options = dict(itertools.pairwise(words))
    lora = "--lora" in words
    profile = PROFILES[options.get("--profile", "gpu4_lora" if lora else "gpu8")]
    return make_plan(
        Recipe(options["--method"], released(options["--model"]), profile), [], CLEAN | environment, options["--name"]
    )


def shown(script: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, **environment: str) -> str:
    monkeypatch.setattr(os, "environ", CLEAN | environment)
    main([*plan_words(script), "--dry-run", "--verbose"])
    return capsys.readouterr().out


def refused(
    script: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    *words: str,
    **environment: str,
) -> str:
    monkeypatch.setattr(os, "environ", CLEAN | environment)
    monkeypatch.setattr(os, "execve", lambda *_: pytest.fail("a run was started"))
    given = [word for word in plan_words(script) if word != "--dry-run"]
    with pytest.raises(SystemExit) as stopped:
        main([*given, *words])
    assert stopped.value.code == 2
    return capsys.readouterr().err


@pytest.mark.parametrize("script", GPU_SCRIPTS)
def test_a_script_fits_its_machine(script: str) -> None:
    budget = plan_of(script).budget
    assert budget.problems == ()
    assert [warning for warning in budget.warnings if not warning.startswith("the disk of ")] == []
    small = "24gb" in script
    roles = ["actor", "rollout"] if "openclaw_sdpo" in script else ["actor", "rollout", "judge"]
    assert [need.role for row in budget.rows for need in row.needs] == roles
    assert len(budget.rows) == (1 if small else len(roles))
    assert all(row.total + row.doubt <= (24 if small else 79) * GIB for row in budget.rows)


def test_the_dry_run_shows_order_and_budget(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = shown(MAIN, capsys, monkeypatch).splitlines()
    assert lines[lines.index("start order:") + 1] == "  1. rollout + judge + actor"
    text = "\n".join(lines)
    for pattern in (
        r"of 80\.0 \(profile gpu8; this machine has no GPU\)",
        r"GPU 0-3  actor  .* weights 3\.7, gradients and moments 11\.2, .*activations .*\(activations .*\)",
        r"checkpointing: of 36 layers \d+ stay unchecked",
        r"GPU 4-5  rollout .* weights 3\.7, cache .*, graphs .*, workspace",
        r"GPU 6-7  sum .*: fits",
        r"cache of the judge engine: \d{6} tokens",
        r"checkpoint 45\.0 GiB every 10 rollouts; 3 kept and one being written take 179\.8 GiB",
    ):
        assert re.search(pattern, text), pattern
    lines = shown(SMALL, capsys, monkeypatch).splitlines()
    at = lines.index("start order:")
    assert lines[at + 1 : at + 4] == ["  1. rollout", "  2. judge", "  3. actor"]


@pytest.mark.parametrize(
    ("script", "gib", "says", "change"),
    [
        (MAIN, "24", "GPU 0-3 needs 3", "USE_LORA=1"),
        (SMALL, "16", "GPU 0 needs 2", "no single change makes it fit"),
        ("openclaw-combine/run_qwen3_8b_openclaw_combine.sh", "48", "GPU 0-3 needs 5", "USE_LORA=1"),
        ("openclaw-opd/run_qwen3_8b_openclaw_opd_lora.sh", "24", "GPU 0-1 needs ", "CONTEXT_LENGTH=16384"),
    ],
)
def test_a_smaller_gpu_is_refused_in_the_dry_run_and_at_the_start(
    script: str,
    gib: str,
    says: str,
    change: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for words in ([], ["--dry-run"]):
        said = refused(script, capsys, monkeypatch, *words, GPU_MEMORY_GB=gib)
        assert says in said
        assert f"has {float(gib):.1f} (--gpu-memory-gb)" in said
        assert change in said


def test_a_change_that_is_offered_fits(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    said = refused(MAIN, capsys, monkeypatch, GPU_MEMORY_GB="24")
    offered = said.strip().split("each of these alone fits: ")[1].split(", or ")
    assert len(offered) >= 2
    for change in offered:
        name, _, value = change.partition("=")
        if value:
            assert plan_of(MAIN, GPU_MEMORY_GB="24", **{name: value}).budget.problems == ()


@pytest.mark.parametrize(("gib", "problems", "warnings"), [("22.5", 0, 0), ("23.5", 0, 0), ("20", 0, 2)])
def test_the_smallest_script_on_cards_of_its_size(gib: str, problems: int, warnings: int) -> None:
    """22.5 GiB are what an A10 or L4 of 24 GB has; 23.5 are less than a 4090's 24.

    On 20 GiB an engine that is started again beside the others may find too little for a context, which is said too.
    """
    budget = plan_of(SMALL, GPU_MEMORY_GB=gib).budget
    of_memory = [warning for warning in budget.warnings if not warning.startswith("the disk of ")]
    assert (len(budget.problems), len(of_memory)) == (problems, warnings)


def test_a_cache_below_a_context_names_the_variable(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    said = refused(MAIN, capsys, monkeypatch, GPU_MEMORY_GB="80", MEM_FRACTION_STATIC="0.05")
    assert re.search(
        r"rollout engine's cache holds \d+ tokens, but a context has 32768; each of these alone fits: ", said
    )
    assert "MEM_FRACTION_STATIC=0." in said


def test_numbers_of_listed_gpus_are_the_users() -> None:
    environment = {"ACTOR_GPUS": "2,3", "ROLLOUT_GPUS": "4,5", "PRM_GPUS": "6,7"}
    lines = plan_of(MAIN, **environment).budget.lines
    assert any(line.startswith("  GPU 2-3  actor") for line in lines)


def test_on_a_cpu_there_is_no_budget() -> None:
    assert make_plan(Recipe("rl", None, PROFILES["tiny_cpu"]), [], CLEAN | {"HF_CKPT": "m"}).budget.lines == ()


def page_row(script: str) -> str:
    rows = plan_of(script).budget.rows
    cells = [f"{row.total / GIB:.0f} ± {max(1, row.doubt / GIB):.0f}" for row in rows]
    if len(cells) == 1:
        cells = [f"{cells[0]} together", "", ""]
    return f"| `{Path(script).name}` | {' | '.join(cells)} |"


def test_the_page_has_the_budgets_of_the_scripts(repository: Path) -> None:
    page = (repository / "instructions" / "scripts.md").read_text()
    rows = [page_row(script) for script in PAGE]
    assert [row for row in rows if row not in page.splitlines()] == [], "instructions/scripts.md has other rows"
