"""Published data sets as instances, and what of them must not be trained on."""

from __future__ import annotations

import json
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from agentrl.tasks.swe import external
from agentrl.tasks.swe.__main__ import main
from agentrl.tasks.swe.contamination import overlaps
from agentrl.tasks.swe.diffs import diff_of, reversed_diff
from agentrl.tasks.swe.generate import generate
from agentrl.tasks.swe.importers import imported
from agentrl.tasks.swe.instance import Instance, instance_of
from agentrl.tasks.swe.source import InstanceSource, read_rows
from groundwork.exceptions import ConfigError

FIX = "diff --git a/m.py b/m.py\n--- a/m.py\n+++ b/m.py\n@@ -1 +1 @@\n-a = 1\n+a = 2\n"
TEST = "diff --git a/tests/test_m.py b/tests/test_m.py\nnew file mode 100644\n--- /dev/null\n+++ b/tests/test_m.py\n@@ -0,0 +1 @@\n+x\n"
EVAL = """#!/bin/bash
source /opt/miniconda3/bin/activate
cd /testbed
git apply -v - <<'EOF'
x
EOF
: '>>>>> Start Test Output'
./tests/runtests.py --verbosity 2 admin.tests
: '>>>>> End Test Output'
git checkout abc tests
"""
ROW: dict[str, Any] = {
    "instance_id": "acme__m-1",
    "repo": "acme/m",
    "base_commit": "abcdef0",
    "problem_statement": "a is 1",
    "hints_text": "a should be 2",
    "patch": FIX,
    "test_patch": TEST,
    "FAIL_TO_PASS": '["tests/test_m.py::test_a"]',
    "PASS_TO_PASS": "[]",
}


def write(file: Path, *rows: dict[str, Any]) -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return file


@pytest.mark.parametrize(
    ("benchmark", "image"),
    [
        ("swe-gym", "xingyaoww/sweb.eval.x86_64.acme_s_m-1:latest"),
        ("swe-bench-verified", "swebench/sweb.eval.x86_64.acme_1776_m-1:latest"),
        ("swe-bench-lite", "swebench/sweb.eval.x86_64.acme_1776_m-1:latest"),
    ],
)
def test_rows_of_swe_bench(benchmark: str, image: str, tmp_path: Path) -> None:
    (found,), left_out = imported(benchmark, write(tmp_path / "rows.jsonl", ROW))
    assert left_out == []
    assert (found.id, found.repo, found.commit, found.image, found.benchmark) == (
        "acme__m-1",
        "acme/m",
        "abcdef0",
        image,
        benchmark,
    )
    assert (found.grading.framework, found.grading.command) == ("pytest", "")
    assert "should be" not in repr(found.row()), "hints are not part of the issue"


def test_another_framework_has_the_command_of_its_script(tmp_path: Path) -> None:
    django = {**ROW, "repo": "django/django", "eval_script": EVAL}
    named = {
        **ROW,
        "instance_id": "b",
        "log_parser": "parse_log_sympy",
        "test_cmd": "bin/test -C",
        "image_name": "mine",
    }
    none = {**ROW, "instance_id": "c", "repo": "sympy/sympy"}
    failures = {**ROW, "instance_id": "d", "eval_type": "fail_only"}
    bad = {**ROW, "instance_id": "e", "FAIL_TO_PASS": "[]"}
    (tmp_path / "rows.json").write_text(json.dumps([django, named, none, failures, bad]))
    found, left_out = imported("swe-bench-verified", tmp_path / "rows.json")
    assert [(each.grading.framework, each.grading.command, each.image) for each in found] == [
        (
            "parse_log_django",
            "./tests/runtests.py --verbosity 2 admin.tests",
            "swebench/sweb.eval.x86_64.acme_1776_m-1:latest",
        ),
        ("parse_log_sympy", "bin/test -C", "mine"),
    ]
    assert [why.split(":")[0] for why in left_out] == ["c", "d", "e"]


@pytest.mark.parametrize(
    ("columns", "framework", "needs"),
    [
        ({"repo": "psf/requests"}, "parse_log_requests", True),
        ({"repo": "sphinx-doc/sphinx"}, "parse_log_sphinx", True),
        ({"repo": "pallets/flask"}, "pytest", False),
        ({"log_parser": "parse_log_pytest_options", "test_cmd": "tox"}, "parse_log_pytest_options", True),
        ({"log_parser": "parse_log_xarray", "test_cmd": "pytest"}, "pytest", False),
    ],
)
def test_a_parser_that_writes_other_ids_is_kept(
    columns: dict[str, str], framework: str, needs: bool, tmp_path: Path
) -> None:
    (found,), left_out = imported("swe-bench-verified", write(tmp_path / "rows.jsonl", {**ROW, **columns}))
    grading = found.grading
    assert (grading.framework, grading.command, grading.needs_swebench, left_out) == (framework, "", needs, [])
    assert grading.runs == "pytest", "pytest is run here, with traps"
    assert instance_of(found.row()) == found


def test_without_swebench_such_rows_are_refused_at_the_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(external, "INSTALLED", tmp_path / "none")
    write(tmp_path / "swe-gym.jsonl", {**ROW, "benchmark": "swe-gym"})
    assert InstanceSource(path=str(tmp_path)).ids() == ["acme__m-1"], "plain rows need none"
    write(tmp_path / "swe-gym.jsonl", {**ROW, "log_parser": "parse_log_requests", "benchmark": "swe-gym"})
    with pytest.raises(ConfigError, match=r"run bash scripts/setup_swebench\.sh; it reads the logs of 1 .*acme__m-1"):
        InstanceSource(path=str(tmp_path)).ids()


def test_rows_in_parquet(tmp_path: Path) -> None:
    pandas = pytest.importorskip("pandas")
    pandas.DataFrame([{**ROW, "FAIL_TO_PASS": ["tests/test_m.py::test_a"], "image_name": None}]).to_parquet(
        tmp_path / "rows.parquet"
    )
    (found,), left_out = imported("swe-gym", tmp_path)
    assert (found.grading.fail_to_pass, left_out) == (("tests/test_m.py::test_a",), [])


def smith(name: str = "acme__m.abcdef01.func_pm__x1") -> dict[str, Any]:
    return {
        "instance_id": name,
        "repo": "swesmith/acme__m.abcdef01",
        "patch": reversed_diff(FIX),
        "FAIL_TO_PASS": ["tests/test_m.py::test_a"],
        "PASS_TO_PASS": [],
        "image_name": "smith/image",
        "problem_statement": "a is 1",
    }


def test_rows_of_swe_smith(tmp_path: Path) -> None:
    (found,), _ = imported("swe-smith", write(tmp_path / "rows.jsonl", smith()))
    assert (found.repo, found.commit, found.image) == ("acme/m", "abcdef01", "smith/image")
    assert (found.bug, found.grading.gold, found.grading.test_patch) == (reversed_diff(FIX), FIX, "")
    other = {**smith(), "repo": "acme/m"}
    assert "is not OWNER__NAME.COMMIT" in imported("swe-smith", write(tmp_path / "other.jsonl", other))[1][0]


def test_folders_of_swe_smith(tmp_path: Path) -> None:
    row = smith()
    folder = tmp_path / "run" / str(row["instance_id"])
    folder.mkdir(parents=True)
    (folder / "patch.diff").write_text(row["patch"])
    report = {name: row[name] for name in ("FAIL_TO_PASS", "PASS_TO_PASS")}
    (folder / "report.json").write_text(json.dumps(report))
    assert "problem_statement" in imported("swe-smith", tmp_path)[1][0]
    (folder / "problem_statement.md").write_text("a is 1")
    (found,), left_out = imported("swe-smith", tmp_path)
    assert (found.repo, found.commit, found.statement, left_out) == ("acme/m", "abcdef01", "a is 1", [])
    with pytest.raises(ConfigError, match="neither rows"):
        imported("swe-smith", folder.parent.parent / "run2" if (tmp_path / "run2").mkdir() is None else folder)


def test_a_reversed_diff_takes_a_diff_back(tmp_path: Path) -> None:
    before = {"a.txt": "1\n2\n3\n-- x\n", "gone.txt": "--- x\n+++ y\n", "end.txt": "none"}
    after = {"a.txt": "1\n3\n++ y\n4\n", "new.txt": "y\n", "end.txt": "one\n"}
    diff = diff_of(before, after)
    for path, text in after.items():
        (tmp_path / path).write_text(text)
    subprocess.run(["git", "apply", "-"], cwd=tmp_path, input=reversed_diff(diff), text=True, check=True)
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == before
    assert reversed_diff(reversed_diff(diff)) == diff


def made(**changes: Any) -> Instance:
    return instance_of(ROW | changes)


def test_what_is_in_an_evaluation_is_named() -> None:
    test = [made()]
    other = {"instance_id": "x", "base_commit": "1", "problem_statement": "another", "patch": FIX.replace("2", "3")}
    assert overlaps([made(**other)], test) == []
    for changes, reason in (
        ({"instance_id": "acme__m-1"}, "the id"),
        ({"base_commit": "abcdef0"}, "repository and commit"),
        ({"problem_statement": " A   is 1\n"}, "the issue"),
        ({"patch": FIX.replace("@@ -1 +1 @@", "@@ -5 +5 @@")}, "the solution"),
    ):
        (found,) = overlaps([made(**{**other, **changes})], test)
        assert (found.reason, found.test) == (reason, "acme__m-1")
    generated = [generate(f"swe/pages/train/{number}") for number in range(5)]
    assert overlaps(generated, test) == []


def test_an_evaluation_is_never_offered_for_training(tmp_path: Path) -> None:
    write(tmp_path / "swe-bench-verified.jsonl", {**ROW, "benchmark": "swe-bench-verified"})
    source = InstanceSource(path=str(tmp_path))
    assert source.ids("heldout") == ["acme__m-1"]
    with pytest.raises(ConfigError, match="has no instance for train"):
        source.ids("train")
    with pytest.raises(ConfigError, match="is for evaluation only"):
        InstanceSource(path=str(tmp_path), benchmark="swe-bench-verified").ids("train")
    mine = {**ROW, "instance_id": "mine", "base_commit": "1", "problem_statement": "y", "patch": FIX.replace("2", "3")}
    write(tmp_path / "swe-gym.jsonl", {**mine, "benchmark": "swe-gym"})
    assert InstanceSource(path=str(tmp_path)).ids("train") == ["mine"]
    write(tmp_path / "swe-gym.jsonl", {**mine, "problem_statement": ROW["problem_statement"], "benchmark": "swe-gym"})
    with pytest.raises(ConfigError, match="mine is in the evaluation: the issue of acme__m-1"):
        InstanceSource(path=str(tmp_path)).ids("train")


def test_the_commands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    rows, folder = (
        write(tmp_path / "raw.jsonl", ROW, {**ROW, "instance_id": "b", "FAIL_TO_PASS": "[]"}),
        tmp_path / "in",
    )
    assert main(["import", "swe-bench-verified", str(rows), str(folder)]) == 0
    said = capsys.readouterr()
    assert ("1 instances" in said.out, "left out: b: FAIL_TO_PASS" in said.err) == (True, True)
    (kept,) = read_rows(folder / "swe-bench-verified.jsonl")
    assert replace(kept) == kept
    more = {**ROW, "instance_id": "mine", "base_commit": "1", "problem_statement": "y", "patch": FIX.replace("2", "3")}
    mixed = write(tmp_path / "more.jsonl", ROW, more)
    assert main(["import", "swe-gym", str(mixed), str(folder)]) == 0
    written, test = str(folder / "swe-gym.jsonl"), str(folder / "swe-bench-verified.jsonl")
    capsys.readouterr()
    assert main(["contamination", written, test]) == 1
    assert "acme__m-1 is in the evaluation: the id of acme__m-1" in capsys.readouterr().out
    assert main(["import", "swe-gym", str(mixed), str(folder), "--without", test]) == 0
    assert main(["contamination", written, test]) == 0
    monkeypatch.setenv("SWE_BENCH_PATH", str(folder))
    capsys.readouterr()
    assert main(["ids"]) == 0
    assert capsys.readouterr().out.split() == ["acme__m-1", "mine"]
    assert main(["prompts", str(tmp_path / "p.jsonl")]) == 0
    (prompt,) = [json.loads(line) for line in (tmp_path / "p.jsonl").read_text().splitlines()]
    assert prompt == {"text": "y", "metadata": {"task_id": "mine", "seed": 0}}
    assert main(["import", "swe-gym", str(tmp_path / "none.jsonl"), str(folder)]) == 2
    assert "none.jsonl cannot be read" in capsys.readouterr().err
    assert main(["check", "--parallel", "0", "swe/pages/train/2"]) == 2
    assert "--parallel 0 would check nothing" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main(["import", "r2e-gym", str(rows), str(folder)])
    assert "r2e-gym cannot be imported" in capsys.readouterr().err
