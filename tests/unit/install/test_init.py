"""`openclaw-rl init`: the questions, the checks before anything is written, and files that never replace a person's own."""

from __future__ import annotations

import http.server
import json
import os
import re
import shlex
import shutil
import stat
import subprocess
import threading
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

import openclaw.init.__main__ as command
from openclaw.init import machine
from openclaw.init.clients import CLIENTS, Connection
from openclaw.init.machine import RUNS
from tests.unit.install.conftest import StandInMachine
from tests.unit.install.test_machine_check import A100_40, H100, RTX_4090

SIXTEEN = ("NVIDIA GeForce RTX 4080", 16376, "8.9")
JUDGE = "https://judge.example/v1,big"


@pytest.fixture
def home(stand_in_machine: StandInMachine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty home on a machine of stand-in programs, with a whole clone, room on the disk, and no terminal."""
    for name in ("SGLANG_API_KEY", "OPENCLAW_JUDGE_API_KEY", "XDG_CONFIG_HOME", "PYTHON"):
        monkeypatch.delenv(name, raising=False)
    folder = tmp_path / "home"
    folder.mkdir()
    monkeypatch.setenv("HOME", str(folder))
    monkeypatch.chdir(folder)
    monkeypatch.setattr(machine.facts, "free_gb", lambda path: (0, 500.0))
    monkeypatch.setattr(machine, "plan_problems", lambda run, clone, variables: [])
    return folder


@pytest.fixture
def at_a_terminal(monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[str]]:
    """Answers of a person; what was asked comes back."""

    def answers(*texts: str) -> list[str]:
        left, asked = list(texts), []

        def read(prompt: str) -> str:
            asked.append(prompt)
            return left.pop(0)

        monkeypatch.setattr("builtins.input", read)
        monkeypatch.setattr("sys.stdin.isatty", lambda: True)
        return asked

    return answers


def files(folder: Path) -> dict[str, str]:
    return {str(path.relative_to(folder)): path.read_text() for path in sorted(folder.rglob("*")) if path.is_file()}


def variables(folder: Path) -> dict[str, str]:
    lines = (folder / "run.env").read_text().splitlines()
    return {
        name: shlex.split(value)[0]
        for name, _, value in (line.partition("=") for line in lines if not line.startswith("#"))
    }


def blocks(page: Path, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", page.read_text(), re.M | re.S)


def test_three_answers_are_enough_without_a_gpu(
    home: Path, repository: Path, at_a_terminal: Callable[..., list[str]], capsys: pytest.CaptureFixture[str]
) -> None:
    asked = at_a_terminal("", "", "")
    assert command.main([]) == 0
    assert len(asked) == 3
    own = home / ".config" / "openclaw-rl"
    assert variables(own) == {"RUN_DIR": str(repository / "runs" / "openclaw-rl"), "PORT": "30000"}
    said = capsys.readouterr().out
    assert f"next:  bash {own}/start.sh\n" in said
    assert "chat: " in said
    assert "see what it learns: http://127.0.0.1:30000/\n" in said
    assert set(files(home)) == {".config/openclaw-rl/run.env", ".config/openclaw-rl/start.sh"}


def test_no_machine_is_asked_more_than_five_questions(
    home: Path, stand_in_machine: StandInMachine, at_a_terminal: Callable[..., list[str]]
) -> None:
    stand_in_machine.gpus(SIXTEEN)
    stand_in_machine.toolkit()
    asked = at_a_terminal("", "net", "nonsense", JUDGE, "none", "yes")
    assert command.main([]) == 0
    assert len(asked) == 6, "five questions, and one of them twice"
    own = variables(home / ".config" / "openclaw-rl")
    assert own["HOST"] == "0.0.0.0"
    assert (own["OPENCLAW_JUDGE_BASE_URL"], own["OPENCLAW_JUDGE_MODEL"]) == tuple(JUDGE.split(","))
    assert (home / ".config" / "systemd" / "user" / "openclaw-rl.service").is_file()


@pytest.mark.parametrize(
    ("gpus", "script"),
    [
        ((H100,) * 8, "run_qwen3_4b_openclaw_combine.sh"),
        ((A100_40,) * 4, "run_qwen3_4b_openclaw_combine_lora.sh"),
        ((RTX_4090,), "run_qwen3_1_7b_openclaw_combine_24gb.sh"),
        ((), "run_tiny_cpu.sh --live"),
    ],
)
def test_the_largest_run_that_fits_is_the_default(
    home: Path, stand_in_machine: StandInMachine, gpus: tuple[tuple[str, int, str], ...], script: str
) -> None:
    if gpus:
        stand_in_machine.gpus(*gpus)
        stand_in_machine.toolkit()
    assert command.main(["--yes"]) == 0
    assert f"exec bash openclaw-combine/{script} " in (home / ".config/openclaw-rl/start.sh").read_text()


def test_every_run_is_a_launch_script_with_its_profile_and_model(repository: Path) -> None:
    for run in RUNS:
        text = (repository / run.script).read_text()
        if run.model is None:
            assert "demo --method combine" in text
            continue
        assert run.model.name.lower() in text.lower()
        assert f"--profile {run.profile}" in text or run.profile == ("gpu4_lora" if "--lora" in text else "gpu8")


def test_what_is_wrong_is_said_before_anything_is_written(
    home: Path,
    stand_in_machine: StandInMachine,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    stand_in_machine.gpus(RTX_4090, driver="550.54")
    monkeypatch.setattr(machine.facts, "free_gb", lambda path: (0, 1.0))
    monkeypatch.setattr(machine.checks, "free_gb", lambda path: (0, 1.0))
    words = ["--yes", "--run", "gpu8", "--repository", str(tmp_path / "none"), "--clients", "codex"]
    assert command.main(words) == 1
    said = capsys.readouterr().err
    for part in (
        "driver 550.54 is too old",
        "no nvcc",
        "gpu8 is for 8 GPUs of 40 GB, and this machine has 24 GiB",
        "Qwen3-4B needs 8.1 GB",
        "the environment",
        "nothing was written",
    ):
        assert part in said
    assert files(home) == {}
    assert command.main([*words, "--skip-checks"]) == 0
    assert ".codex/config.toml" in files(home)


def test_a_full_disk_is_told_without_a_gpu(
    home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setattr(machine.facts, "free_gb", lambda path: (0, 2.5))
    assert command.main(["--yes", "--repository", str(tmp_path / "none")]) == 1
    assert "2.5 GB free" in capsys.readouterr().err
    assert files(home) == {}


def test_the_plan_of_the_launcher_is_asked(repository: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("RUN_DIR", raising=False)
    run = next(run for run in RUNS if run.name == "gpu24")
    fits = {"RUN_DIR": str(tmp_path / "run"), "HOST": "127.0.0.1", "PORT": "0"}
    assert machine.plan_problems(run, repository, fits) == []
    (line, *_) = machine.plan_problems(run, repository, {**fits, "CONTEXT_LENGTH": "4000000"})
    assert line.startswith("launch: ")


def test_without_a_clone_the_next_command_gets_one(
    home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(machine, "OWN", home)
    assert command.main(["--yes"]) == 0
    said = capsys.readouterr().out
    assert f"next:  git clone https://github.com/Gen-Verse/OpenClaw-RL {home}/OpenClaw-RL && bash " in said
    assert "downloads 3 GB of packages once" in said
    monkeypatch.setattr(machine, "has_cpu_environment", lambda clone: True)
    assert command.main(["--yes"]) == 0
    assert "packages" not in capsys.readouterr().out
    (home / "OpenClaw-RL").mkdir()
    (home / "OpenClaw-RL" / "thesis.tex").touch()
    assert command.main(["--yes"]) == 2
    assert "is not a clone" in capsys.readouterr().err


def test_the_next_command_of_a_gpu_sets_up_fetches_and_starts(
    home: Path, stand_in_machine: StandInMachine, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    stand_in_machine.gpus(RTX_4090)
    stand_in_machine.toolkit()
    clone = home / "OpenClaw-RL"
    (clone / "scripts").mkdir(parents=True)
    (clone / "scripts" / "launch.sh").touch()
    monkeypatch.setattr(machine, "OWN", home)
    assert command.main(["--yes"]) == 0
    steps = [
        f"bash {clone}/scripts/setup.sh gpu",
        f"(cd {clone} && .venv/bin/python -m openclaw.models Qwen3-1.7B)",
        f"bash {home}/.config/openclaw-rl/start.sh",
    ]
    assert f"next:  {' && '.join(steps)}\n" in capsys.readouterr().out
    (clone / ".venv").mkdir()
    (clone / ".venv" / ".setup-gpu").touch()
    model = clone / "models" / "Qwen3-1.7B"
    model.mkdir(parents=True)
    for name in ("config.json", "model.safetensors"):
        (model / name).touch()
    assert command.main(["--yes", "--systemd"]) == 0
    start = "systemctl --user daemon-reload && systemctl --user enable --now openclaw-rl"
    assert f"next:  {start}\n" in capsys.readouterr().out


@pytest.mark.parametrize("checkpoint", [False, True])
def test_the_start_script_begins_the_run_or_goes_on(home: Path, checkpoint: bool) -> None:
    clone = home / "a clone"
    for name in ("scripts", "openclaw-combine"):
        (clone / name).mkdir(parents=True)
    (clone / "scripts" / "launch.sh").touch()
    (clone / "openclaw-combine" / "run_tiny_cpu.sh").write_text('echo "$PWD|$RUN_DIR|$PORT|${RESUME:-}|$*"\n')
    own = home / "own files"
    assert command.main(["--yes", "--folder", str(own), "--repository", str(clone), "--port", "30100"]) == 0
    run_dir = clone / "runs" / "own files"
    if checkpoint:
        (run_dir / "checkpoints").mkdir(parents=True)
        (run_dir / "checkpoints" / "latest_checkpointed_iteration.txt").write_text("4")
    done = subprocess.run(["bash", str(own / "start.sh"), "--lr", "1e-4"], capture_output=True, text=True, check=True)
    assert done.stdout == f"{clone}|{run_dir}|30100|{'1' if checkpoint else ''}|--live --lr 1e-4\n"


def test_a_second_time_changes_nothing_and_a_file_of_the_person_stays(
    home: Path, stand_in_machine: StandInMachine, capsys: pytest.CaptureFixture[str]
) -> None:
    stand_in_machine.gpus(RTX_4090)
    stand_in_machine.toolkit()
    words = ["--yes", "--reach", "network", "--clients", "claude_code,codex", "--systemd"]
    assert command.main(words) == 0
    before = files(home)
    key = variables(home / ".config/openclaw-rl")["SGLANG_API_KEY"]
    assert len(key) >= 32
    assert command.main(words) == 0
    assert files(home) == before
    said = capsys.readouterr()
    assert key not in said.out + said.err
    assert f"export OPENCLAW_KEY={key}\n" in before[".config/openclaw-rl/codex.sh"]
    assert {stat.S_IMODE(path.stat().st_mode) for path in home.rglob("*") if path.is_file()} == {0o600}
    start = home / ".config/openclaw-rl/start.sh"
    start.write_text("# mine\n")
    assert command.main(words) == 0
    assert start.read_text() == "# mine\n"
    assert start.with_name("start.sh.new").read_text() == before[".config/openclaw-rl/start.sh"]
    assert "differs and stays as it is" in capsys.readouterr().out
    mine = home / "mine"
    mine.write_text("# mine too\n")
    start.with_name("start.sh.new").unlink()
    start.with_name("start.sh.new").symlink_to(mine)
    for _ in range(2):
        assert command.main(words) == 0
        assert mine.read_text() == "# mine too\n", "nor is what lies beside it"
        assert start.with_name("start.sh.new-2").read_text() == before[".config/openclaw-rl/start.sh"]
    assert not start.with_name("start.sh.new-3").exists()


def test_the_line_to_chat_is_one_that_a_shell_reads(
    home: Path, stand_in_machine: StandInMachine, capsys: pytest.CaptureFixture[str]
) -> None:
    stand_in_machine.gpus(RTX_4090)
    stand_in_machine.toolkit()
    folder = home / "own files"
    words = ["--yes", "--reach", "network", "--clients", "none", "--folder", str(folder)]
    assert command.main(words) == 0
    assert f"(set -a; . '{folder}/run.env'; " in capsys.readouterr().out
    (folder / "run.env").write_text("SGLANG_API_KEY='half\n")
    assert command.main(words) == 2
    assert "the line of SGLANG_API_KEY has no closing quotation; mend it" in capsys.readouterr().err


@pytest.mark.skipif(not shutil.which("systemd-analyze"), reason="no systemd-analyze")
def test_systemd_reads_the_unit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)
    folder = tmp_path / 'a "100%" $run'
    assert command.main(["--yes", "--skip-checks", "--run", "cpu", "--systemd", "--folder", str(folder)]) == 0
    (unit,) = (tmp_path / ".config" / "systemd" / "user").iterdir()
    assert unit.name == "openclaw-rl-a-100-run.service", "a name that systemd reads"
    monkeypatch.setenv(
        "SYSTEMD_UNIT_PATH", f"{unit.parent}:"
    )  # before those of the machine, which may have faults of their own
    done = subprocess.run(["systemd-analyze", "verify", "--user", unit], capture_output=True, text=True, check=False)
    assert [line for line in done.stderr.splitlines() if unit.name in line] == []


# Texts of the pages.


def connection(home: Path, context: int = 32768, repository: Path | None = None) -> Connection:
    return Connection("http://127.0.0.1:30000", "choose-one", context, home, home / "own", repository)


def test_the_files_are_those_of_the_pages(home: Path, repository: Path) -> None:
    pages = repository / "instructions" / "clients"
    for name in ("openclaw", "claude_code", "codex", "opencode"):
        CLIENTS[name].write(connection(home))
    CLIENTS["hermes"].write(connection(home, 65536))
    of_codex = tomllib.loads(blocks(pages / "codex.md", "toml")[0])
    written = tomllib.loads((home / ".codex/config.toml").read_text())
    assert abs(written.pop("model_auto_compact_token_limit") - of_codex.pop("model_auto_compact_token_limit")) < 1000
    assert written == of_codex
    assert json.loads((home / ".config/opencode/opencode.json").read_text()) == json.loads(
        blocks(pages / "opencode.md", "json")[0]
    )
    assert yaml.safe_load((home / ".hermes/config.yaml").read_text()) == yaml.safe_load(
        blocks(pages / "hermes.md", "yaml")[0]
    )
    of_openclaw = blocks(repository / "instructions" / "clients.md", "json")[0].replace("Qwen3-4B", "openclaw-rl")
    assert json.loads((home / ".openclaw/openclaw.json").read_text()) == json.loads(of_openclaw)
    (exports,) = (each for each in blocks(pages / "claude_code.md", "bash") if each.startswith("export"))
    assert (home / "own/claude_code.sh").read_text() == exports


def test_an_entry_is_added_to_json_and_the_rest_stays(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    mine = {"agents": {"defaults": {"model": {"primary": "other/best"}}}, "models": {"providers": {"other": {"a": 1}}}}
    place = home / ".openclaw" / "openclaw.json"
    place.parent.mkdir()
    place.write_text(json.dumps(mine))
    opencode = home / ".config" / "opencode" / "opencode.json"
    opencode.parent.mkdir(parents=True)
    opencode.write_text(json.dumps({"model": "mine/one", "enabled_providers": ["mine"]}))
    for name in ("openclaw", "opencode"):
        assert "added to" in CLIENTS[name].write(connection(home)).files[0]
    found: dict[str, Any] = json.loads(place.read_text())
    assert found["models"]["providers"].pop("openclaw-rl")["apiKey"] == "choose-one"
    assert found == mine
    assert json.loads(place.with_name("openclaw.json.before-openclaw-rl").read_text()) == mine
    other = json.loads(opencode.read_text())
    assert (other["model"], other["enabled_providers"]) == ("mine/one", ["mine", "openclaw"])
    assert "small_model" not in other
    assert "unchanged" in CLIENTS["openclaw"].write(connection(home)).files[0]


@pytest.mark.parametrize(
    ("name", "place", "text", "beside"),
    [
        ("codex", ".codex/config.toml", 'model = "gpt"\n', "own/codex/config.toml"),
        ("hermes", ".hermes/config.yaml", "model:\n  default: x\n", "own/hermes/config.yaml"),
        ("opencode", ".config/opencode/opencode.json", "{ // mine\n}", "own/opencode/opencode.json"),
        ("openclaw", ".openclaw/openclaw.json", "{ // mine\n}", "own/openclaw/openclaw.json"),
        ("openclaw", ".openclaw/openclaw.json", '{"models": ["old"]}', "own/openclaw/openclaw.json"),
    ],
)
def test_a_file_of_the_person_stays_and_the_client_is_told_another(
    name: str, place: str, text: str, beside: str, home: Path
) -> None:
    (home / place).parent.mkdir(parents=True)
    (home / place).write_text(text)
    written = CLIENTS[name].write(connection(home))
    assert (home / place).read_text() == text
    assert (home / beside).is_file()
    assert f"because {home / place} is yours" in written.files[0]
    variable = {"codex": "CODEX_HOME", "hermes": "HERMES_HOME=", "opencode": "OPENCODE_CONFIG="}
    said = written.start + "".join(files(home / "own").values())
    assert variable.get(name, f"copy models.providers.openclaw-rl of {home / beside}") in said


def test_a_client_that_needs_more_context_is_refused(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name, needed in (("hermes", 64000), ("openclaw", 16000), ("codex", 6200 + 512)):
        assert command.main(["--yes", "--run", "cpu", "--clients", name]) == 2
        assert f"needs a context of {needed} tokens, and this server has 2048" in capsys.readouterr().err
    assert files(home) == {}


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "add --yes"),
        (["--yes", "--clients", "emacs"], "no client 'emacs'; name some of openclaw"),
        (["--yes", "--run", "cpu", "--reach", "network"], "answers this machine only"),
        (["--yes", "--run", "cpu", "--server", "http://x"], "--server is for --run elsewhere"),
        (["--yes", "--run", "gpu16"], "name one as URL,MODEL"),
        (["--yes", "--run", "cpu", "--judge", JUDGE], "--judge is for --run gpu16"),
        (["--yes", "--run", "elsewhere", "--server", "box"], "'box' is no URL"),
        (["--yes", "--run", "elsewhere", "--server", "http://user:pa55word@box"], "set keys in the environment"),
        (["--yes", "--run", "elsewhere", "--server", "http://user:pa55@word@"], "set keys in the environment"),
        (["--yes", "--run", "gpu16", "--judge", "https://user:pa55word@host/v1,m"], "set keys in the environment"),
        (["--yes", "--run", "elsewhere", "--server", "http://127.0.0.1:9", "--systemd"], "--systemd is for a run"),
    ],
)
def test_a_wrong_answer_gets_one_line(
    words: list[str], said: str, home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command.main(words) == 2
    err = capsys.readouterr().err
    assert "pa55" not in err
    assert said in err
    assert files(home) == {}


@pytest.fixture
def server() -> Iterator[str]:
    """A server that says how long a conversation may be, to who has the key."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            right = self.headers["Authorization"] == "Bearer secret" and self.path == "/v1/models"
            self.send_response(200 if right else 401)
            self.end_headers()
            self.wfile.write(json.dumps({"data": [{"id": "m", "max_model_len": 70000}]}).encode() if right else b"{}")

        def log_message(self, *words: object) -> None:
            """Say nothing."""

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as served:
        threading.Thread(target=served.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{served.server_port}"
        served.shutdown()


def test_a_server_elsewhere_is_asked_for_its_context(
    home: Path, server: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--yes", "--run", "elsewhere", "--server", f"{server}/v1", "--clients", "hermes"]
    assert command.main(words) == 2, "without the key the context is not known, and Hermes needs much"
    assert "HTTP 401" in capsys.readouterr().err
    monkeypatch.setenv("SGLANG_API_KEY", "secret")
    assert command.main(words) == 0
    found = yaml.safe_load((home / ".hermes/config.yaml").read_text())["model"]
    assert (found["base_url"], found["api_key"], found["context_length"]) == (f"{server}/v1", "secret", 70000)
    said = capsys.readouterr()
    assert "secret" not in said.out + said.err
    assert f"--base-url {server}/v1" in said.out
    assert not (home / ".config" / "openclaw-rl" / "run.env").exists()
    assert os.environ["HOME"] == str(home)
