"""The personalisation benchmark: its runs, resuming, figures of what is there, and tables that show what is not."""

from __future__ import annotations

import json
import os
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from benchmarks import personalization
from benchmarks.personal_parts import figures, matrix, records
from benchmarks.personal_parts.matrix import Cell, cells
from benchmarks.personal_parts.report import Asked, markdown, personal_rows, write_report
from openclaw.launch.methods import methods_of
from openclaw.launch.variables import LAUNCH_VARIABLES

USERS = ("student", "captain")
SIZES = {"most_sessions": 30, "score_after": [8, 16], "heldout": 64, "more_sessions": 400, "parallel": 8}


def record(
    sessions: Mapping[str, int | None], liked: Sequence[int] = (12, 40, 60), seconds: float = 80
) -> dict[str, Any]:
    """Return a run's record: sessions by user, and liked replies of 64 after 0, 8 and 16 updates."""
    scores = {
        str(after): {"updates": after, "problems": 64, "liked": hits, "right": 64 - after, "degenerate": 0}
        for after, hits in zip((0, 8, 16), liked, strict=False)
    }
    return {
        "method": "combine",
        "sizes": SIZES,
        "homework": "chat",
        "reactions": "phrases",
        "load_average": {"start": 1.0, "end": 2.0},
        "seconds": {"total": seconds},
        "machine": {"cpu": "a processor", "cores": 2},
        "per_user": {user: {"sessions_to_follow": number, "scores": scores} for user, number in sessions.items()},
    }


def joint(method: str, by_seed: Sequence[tuple[int | None, int | None]], **more: Any) -> dict[str, dict[str, Any]]:
    """Return records of joint runs, one per seed."""
    return {
        f"{method}-student+captain-seed{seed}": record(dict(zip(USERS, numbers, strict=True)), **more)
        for seed, numbers in enumerate(by_seed)
    }


def test_the_matrix_has_every_run_once() -> None:
    files = {"student": "student", "captain": "/tmp/captain.yaml"}
    found = list(cells(matrix.METHODS, files, matrix.FORMS, [0, 1, 2], []))
    assert len({cell.name for cell in found}) == len(found) == 3 * (1 + 5 * 3)
    assert [cell.name for cell in found[:5]] == [
        "base-student+captain-seed0",
        "rl-student+captain-seed0",
        "rl-student-seed0",
        "rl-captain-seed0",
        "opd-student+captain-seed0",
    ]
    assert found[1].files == ("student", "/tmp/captain.yaml")
    assert [cell.form for cell in found[1:4]] == ["joint", "separate", "separate"]
    one = list(cells(["base", "rl"], {"student": "student"}, ["separate"], [0], []))
    assert [cell.name for cell in one] == ["base-student-seed0", "rl-student-seed0"]


def test_ablations_are_runs_of_known_methods_and_variables() -> None:
    methods = {method.config.name: method.config for method in methods_of()}
    known = {name for variable in LAUNCH_VARIABLES for name in variable.names}
    for arms in matrix.ABLATIONS.values():
        assert len({arm.name for arm in arms}) == len(arms) > 1
        for arm in arms:
            own = {name for variable in methods[arm.method].variables() for name in variable.names}
            assert {name for name, _ in arm.variables} <= known | own | {"PRM_M"}
            assert arm.variables or arm.flags
    found = list(cells([], {"student": "student"}, ["separate"], [0], matrix.ABLATIONS["k"]))
    assert [cell.name for cell in found] == [f"hybrid-student-seed0-k-{k}" for k in (2, 4, 8, 20)]


def test_only_the_ablation_of_the_gate_has_a_gate() -> None:
    arms = [arm for arms in matrix.ABLATIONS.values() for arm in arms]
    found = list(cells(["base", "rl"], {"student": "student"}, ["separate"], [0], arms))
    assert [cell.name for cell in found if cell.variables["GATE"] != "off"] == ["combine-student-seed0-gate-on"]


def test_sessions_are_means_over_users_then_seeds() -> None:
    found = figures.sessions(joint("rl", [(10, 20), (12, 14), (20, 20)]), "rl", "joint", USERS, [0, 1, 2])
    assert found is not None
    assert found.by_seed == {0: 15.0, 1: 13.0, 2: 20.0}
    assert (found.mean, found.capped, found.low, found.high) == (16.0, 0, 13.0, 20.0)
    assert found.told == "16.0 [13.0, 20.0]"


def test_a_user_who_never_got_there_makes_it_a_lower_bound() -> None:
    found = figures.sessions(joint("rl", [(10, None), (None, None)]), "rl", "joint", USERS, [0, 1, 2])
    assert found is not None
    assert found.told == "≥ 25.0 [20.0, 30.0], 2 of 3 seeds, 3 not within 30"


def test_separate_runs_count_only_whole_seeds() -> None:
    runs = {
        "rl-student-seed0": record({"student": 10}),
        "rl-captain-seed0": record({"captain": 20}),
        "rl-student-seed1": record({"student": 4}),
    }
    found = figures.sessions(runs, "rl", "separate", USERS, [0, 1])
    assert found is not None
    assert found.told == "15.0, 1 of 2 seeds"
    assert figures.sessions(runs, "rl", "joint", USERS, [0, 1]) is None
    scored = figures.share(runs, "rl", "separate", USERS, [0, 1], 8)
    assert scored is not None
    assert (scored.hits, scored.problems, scored.runs, scored.wanted) == (120, 192, 3, 4)
    assert scored.told.endswith(", 3 of 4 runs")


def test_the_base_stands_for_both_forms() -> None:
    runs = joint("base", [(None, 30)], liked=(12,))
    for form in matrix.FORMS:
        found = figures.sessions(runs, "base", form, USERS, [0])
        assert found is not None
        assert found.told == "≥ 30.0, 1 not within 30"
    assert figures.share(runs, "base", "joint", USERS, [0], 8) is None


@pytest.mark.parametrize(
    ("one", "other", "said"),
    [
        ([(9, 9)] * 3, [(14, 14), (13, 13), (15, 15)], "yes: -5.0 sessions [-6.0, -4.0]"),
        ([(20, 20)] * 3, [(14, 14), (13, 13), (15, 15)], "no, more: +6.0 sessions [+5.0, +7.0]"),
        ([(9, 9)] * 3, [(8, 8), (14, 14), (9, 9)], "undecided: -1.3 sessions [-5.0, +1.0]"),
        ([(9, 9)] * 2, [(14, 14)] * 3, "undecided: -5.0 sessions with 2 seeds, and an interval needs 3"),
        ([], [(14, 14)] * 3, "not run"),
    ],
)
def test_a_comparison_says_no_more_than_its_seeds(one: list, other: list, said: str) -> None:
    runs = {**joint("hybrid", one), **joint("rl", other)}
    pair = [figures.sessions(runs, method, "joint", USERS, [0, 1, 2]) for method in ("hybrid", "rl")]
    assert figures.fewer(*pair) == said


def asked(runs: dict[str, dict[str, Any]], **more: Any) -> Asked:
    """Return what a report of these runs covers."""
    machine = {"cpu": "a processor", "cores": 2}
    values = {"ablations": {}, "personal": [], "machine": machine, **more}
    return Asked(runs, ["base", "rl", "hybrid"], USERS, ["joint", "separate"], [0, 1, 2], [8, 16], **values)


def test_the_report_shows_what_was_not_run(tmp_path: Path) -> None:
    runs = joint("rl", [(10, 20), (12, 14)])
    text = markdown(asked(runs, ablations={"k": matrix.ABLATIONS["k"]}), {})
    assert "| Binary RL | 14.0 [13.0, 15.0], 2 of 3 seeds | not run | 14.1 |" in text
    assert "| Hybrid | not run | not run | 10.3 |" in text
    assert "| base | both | not run | - | - | not run | 0.17 | 0.17 |" in text
    assert "| Binary RL | joint | 0.19 [0.14, 0.24], 2 of 3 runs | 0.62 [" in text
    assert "| Hybrid, Binary RL | not run | yes: -3.8 |" in text
    assert "| k-4 | Hybrid | not run | not run |" in text
    assert "the load average at its end was 2.0 to 2.0" in " ".join(text.split())
    assert max(len(line) for line in text.splitlines() if not line.startswith("|")) <= 100
    write_report(asked(runs), tmp_path / "r.md")
    assert (tmp_path / "r_sessions.png").stat().st_size > 1000
    assert "![scores by method](r_scores.png)" in (tmp_path / "r.md").read_text()
    write_report(asked({}), tmp_path / "empty.md")
    assert not list(tmp_path.glob("empty*.png")), "an empty plot would be a claim"


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Cell, list[str]]]:
    """Replace runs by records; return what was asked for."""
    held: list[tuple[Cell, list[str]]] = []

    def pretend(cell: Cell, options: Sequence[str], folder: Path, programs: records.Programs) -> dict[str, Any]:
        held.append((cell, list(options)))
        if cell.seed == 2 and cell.method == "rl" and len(held) < 7:
            raise records.RunError(f"{cell.name} failed with exit code 1")
        made = record(dict.fromkeys(cell.users, 10))
        records.write(folder / f"{cell.name}.json", made)
        return made

    monkeypatch.setattr(personalization, "run", pretend)
    return held


def command(tmp_path: Path, *words: str) -> int:
    """Run the benchmark in a folder."""
    line = ["--json", str(tmp_path / "r.json"), "--runs", str(tmp_path / "runs"), "--forms", "joint", *words]
    return personalization.main([*line, "--methods", "combine,rl"])


def test_a_failed_run_is_told_and_tried_again(
    tmp_path: Path, run: list[tuple[Cell, list[str]]], capsys: pytest.CaptureFixture[str]
) -> None:
    assert command(tmp_path, "--jobs", "1") == 1
    assert "rl-student+captain-seed2 failed with exit code 1" in capsys.readouterr().err
    assert len(run) == 6, "the others still ran"
    assert not (tmp_path / "r.json").exists()
    assert command(tmp_path) == 0
    assert [cell.name for cell, _ in run[6:]] == ["rl-student+captain-seed2"]
    assert run[0][1] == ["--most-sessions", "30", "--heldout", "64", "--score-after", "8,16"]
    saved = json.loads((tmp_path / "r.json").read_text())
    assert saved["figures"]["rl"]["joint"]["sessions"]["mean"] == 10
    assert saved["figures"]["rl"]["separate"]["sessions"] is None
    assert command(tmp_path) == 0
    assert len(run) == 7, "nothing is run twice"


def test_records_of_other_sizes_are_not_mixed(
    tmp_path: Path, run: list[tuple[Cell, list[str]]], capsys: pytest.CaptureFixture[str]
) -> None:
    assert command(tmp_path, "--seeds", "0") == 0
    assert command(tmp_path, "--seeds", "0", "--most-sessions", "31") == 1
    said = capsys.readouterr().err
    assert "'most_sessions': 30" in said
    assert "give the same options, or another folder: --runs FOLDER" in said
    assert command(tmp_path, "--seeds", "0", "--workspace") == 1
    assert "homework=chat" in capsys.readouterr().err


def test_only_a_report_runs_nothing(tmp_path: Path, run: list[tuple[Cell, list[str]]]) -> None:
    assert command(tmp_path, "--only-report", "--report", str(tmp_path / "r.md")) == 0
    assert run == []
    assert "| Combine | not run |" in (tmp_path / "r.md").read_text()


def test_the_estimate_uses_the_folders_own_runs() -> None:
    todo = [Cell(method, ("student",), 0, ("student",)) for method in ("combine", "combine", "base")]
    guess = personalization.seconds_left(todo, [])
    assert guess == 2 * personalization.SECONDS_OF_OTHERS + personalization.SECONDS_PER_RUN["base"]
    done = [record({"student": 3}, seconds=seconds) for seconds in (100, 200)]
    assert personalization.seconds_left(todo, done) == 300 + personalization.SECONDS_PER_RUN["base"]


def test_the_default_fits_into_an_hour_on_two_idle_cores() -> None:
    """By the seconds that `SECONDS_PER_RUN` explains, with a margin for a slower machine."""
    options = personalization.parse(["--json", "r.json"])
    todo = list(cells(options.methods, options.people, options.forms, options.seeds, []))
    assert options.seeds == [0, 1, 2]
    assert len(options.people) == 2
    assert {cell.method for cell in todo} == set(matrix.METHODS)
    assert 1.5 * personalization.seconds_left(todo, []) / options.jobs <= 3600


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--users", "student,nobody"], "there is no user nobody"),
        (["--ablate", "k,x"], "--ablate x: known: k, w"),
        (["--forms", "alone"], "--forms alone: give joint, separate or both"),
        (["--seeds", "a"], "invalid literal"),
        (["--jobs", "0"], "--jobs 0: give 1 or more"),
        (["--methods", "rl,ppo"], "--methods ppo: known: base, "),
    ],
)
def test_what_is_wrong_is_told_before_anything_runs(
    words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        personalization.parse(["--json", "r.json", *words])
    assert said in " ".join(capsys.readouterr().err.split())


def test_a_run_is_its_own_process_and_leaves_its_last_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    program = tmp_path / "program.py"
    program.write_text(
        "import json, os, sys\n"
        "words = dict(zip(sys.argv[1::2], sys.argv[2::2]))\n"
        "if words['--seed'] == '1': sys.exit('no engine')\n"
        "open(words['--report'], 'w').write(json.dumps({'words': words, 'k': os.environ['OPENCLAW_HYBRID_TOPK']}))\n"
    )
    monkeypatch.setattr(records, "PROGRAM", program)
    arm = matrix.ABLATIONS["k"][0]
    found = records.run(
        Cell("hybrid", ("a", "b"), 0, ("a", "/x/b.yaml"), arm), ["--heldout", "8"], tmp_path, records.Programs()
    )
    assert (found["words"]["--users"], found["words"]["--heldout"], found["k"]) == ("a,/x/b.yaml", "8", "2")
    assert found == json.loads((tmp_path / "hybrid-a+b-seed0-k-2.json").read_text())
    assert (found["form"], found["arm"], found["variables"]) == (
        "joint",
        "k-2",
        {"GATE": "off", "OPENCLAW_HYBRID_TOPK": "2"},
    )
    with pytest.raises(records.RunError, match="no engine"):
        records.run(Cell("rl", ("a",), 1, ("a",), arm), [], tmp_path, records.Programs())
    assert "rl-a-seed1-k-2: no engine" in capsys.readouterr().out
    assert not (tmp_path / "rl-a-seed1-k-2.json").exists()


def test_sigterm_ends_the_runs_that_go_on_and_keeps_those_that_are_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    program = tmp_path / "program.py"
    program.write_text(
        "import json, os, signal, sys\n"
        "words = dict(zip(sys.argv[1::2], sys.argv[2::2]))\n"
        "if words['--seed'] == '0':\n"
        f"    open(words['--report'], 'w').write({json.dumps(record(dict.fromkeys(USERS, 10)))!r})\n"
        "    sys.exit()\n"
        "def stop(*_):\n"
        f"    open({str(tmp_path / 'stopped')!r}, 'w').write(str(os.getpid()))\n"
        "    sys.exit(1)\n"
        "signal.signal(signal.SIGTERM, stop)\n"
        "os.kill(os.getppid(), signal.SIGTERM)\n"
        "signal.pause()\n"
    )
    monkeypatch.setattr(records, "PROGRAM", program)
    assert command(tmp_path, "--seeds", "0,1,2", "--jobs", "1") == 130
    assert "the same command continues" in capsys.readouterr().err
    child = int((tmp_path / "stopped").read_text())
    with pytest.raises(ProcessLookupError):
        os.kill(child, 0)
    done = sorted(path.name for path in (tmp_path / "runs").iterdir())
    assert done == [f"{name}-student+captain-seed0.json" for name in ("combine", "rl")]


def test_bootstrap_is_of_seeds_and_not_of_users() -> None:
    """Two users of one run are not two runs: equal seeds leave no width, however far the users are apart."""
    found = figures.sessions(joint("rl", [(3, 29)] * 3), "rl", "joint", USERS, [0, 1, 2])
    assert found is not None
    assert (found.low, found.high) == (statistics.mean((3, 29)),) * 2


def arm_record(sessions: int | None, complaints: int) -> dict[str, Any]:
    """Return the record of a run whose users, with keys of their own, were scored after the counted sessions."""
    made = record(dict.fromkeys(USERS, sessions), liked=(12,))
    for user in made["per_user"].values():
        user["complaints_to_follow"] = complaints
        for name, hits in ((figures.COUNTED, 48), (figures.COUNTED_WITH_LESSONS, 56)):
            user["scores"][name] = {"updates": 2, "problems": 64, "liked": hits, "right": 62, "degenerate": 0}
    return made


def test_personal_arms_tell_sessions_complaints_and_what_the_weights_know() -> None:
    arm = matrix.PERSONAL_ARMS["both"]
    runs = {f"personal-student+captain-seed{seed}-both": arm_record(4 + seed, seed) for seed in range(3)}
    report = asked(runs, personal=[arm])
    joint_row, separate_row = personal_rows(report)
    assert joint_row[:3] == ["lessons and practice", "joint", "5.0 [4.0, 6.0]"]
    assert joint_row[3] == "1.0 [0.0, 2.0]"
    assert [cell.split()[0] for cell in joint_row[4:7]] == ["0.19", "0.75", "0.88"]
    assert joint_row[7] == "1.00, 0.97, 0.97"
    assert separate_row[2:7] == ["not run"] * 5
    assert joint_row[8] == "no gate"
    assert "## From the first complaint on" in markdown(report, {})
    told = figures.personal_table(runs, [arm], USERS, [0, 1, 2])["both"]
    assert told["joint"]["complaints"] == {"mean": 1, "low": 0.0, "high": 2.0}
    assert told["separate"]["sessions"] is None


def decided(accepted: bool, margin: float | None, fell: bool = False) -> dict[str, Any]:
    error = None if margin is None else 0.02
    return {"accepted": accepted, "margin": margin, "error": error, "fell": fell, "why": "a test"}


def test_updates_are_told_by_what_the_gate_decided() -> None:
    arm = matrix.PERSONAL_ARMS["gated"]
    assert dict(arm.variables)["GATE"] == "on"
    runs = {f"personal-student+captain-seed{seed}-gated": arm_record(4, 1) for seed in range(2)}
    made = [decided(True, 0.1), decided(True, -0.01), decided(False, -0.3, fell=True), decided(True, None)]
    for found in runs.values():
        found["gate"] = made
    key = ("personal", "joint", USERS, [0, 1, 2], "gated")
    found = figures.updates(runs, *key)
    assert found == figures.Updates(6, 2, 4, 0, (-0.01, 0.02))
    assert personal_rows(asked(runs, personal=[arm]))[0][8] == (
        "6 accepted, 2 refused; 0 of 4 fell, lowest -0.010 ± 0.020"
    )
    made.append(decided(True, -0.4, fell=True))
    found = figures.updates(runs, *key)
    assert found is not None
    assert found.fell == 2, "a gate that accepts what it says it refuses shows"
    assert figures.updates({}, *key) is None


def test_personal_arms_run_in_every_form_with_a_key_for_each_user() -> None:
    options = personalization.parse(["--json", "new.json", "--arms", "lessons,both", "--forms", "joint,separate"])
    assert options.methods == []
    files = {name: name for name in USERS}
    found = list(cells(options.methods, files, options.forms, [0], [], options.arms))
    assert [cell.name for cell in found] == [
        f"{method}-{users}-seed0-{arm}"
        for method, arm in (("rl", "lessons"), ("personal", "both"))
        for users in ("student+captain", "student", "captain")
    ]
    assert all("--key-each" in cell.arm.flags for cell in found if cell.arm)


def test_an_unknown_arm_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        personalization.parse(["--json", "new.json", "--arms", "lessons,moon"])
    assert (
        "--arms moon: known: weights-today, lessons, weights, both, gated, adapters, replay, rubric"
        in capsys.readouterr().err
    )
