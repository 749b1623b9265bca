"""What the documentation names exists, and what exists is documented."""

from __future__ import annotations

import re
from pathlib import Path

from openclaw.config.runtime_variables import VARIABLES
from openclaw.launch.document import FILE, document
from openclaw.launch.variables import LAUNCH_VARIABLES
from slime.arguments.machines import ADDRESS_VARIABLE
from slime.arguments.parser import build_parser
from slime.arguments.process_environment import NOSET
from slime.ray.ray_start import MODE_VARIABLE, TOKEN_VARIABLE
from slime.utils.forwarded_environment import FORWARDED, PREFIXES, travels

WORDS_OF_OTHER_PROGRAMS = {
    *("--head", "--address", "--dashboard-host", "--runtime-env-json"),
    "--check",
    "--skip-checks",
    "--no-deps",
    "--plugin-custom-rm-path",
    "--fast",
    "--lint",
    "--turns",
    "--samples",
    "--session",
    "--export",
    "--help",
    "--dry-run",
    "--link",
    "--force",
    "--accept-capabilities",
}


def pages(repository: Path) -> list[Path]:
    folders = ["", "instructions", "openclaw-rl", "openclaw-opd", "openclaw-combine"]
    return [
        page
        for folder in folders
        for page in (repository / folder).glob("*.md")
        if page.name not in ("LOG.md", FILE.name)
    ]


def test_the_configuration_page_is_what_the_code_declares() -> None:
    assert FILE.read_text() == document(), "run: python -m openclaw.launch.document"


def test_every_flag_in_the_documentation_exists(repository: Path) -> None:
    known = {name for action in build_parser()._actions for name in action.option_strings}
    sources = "".join(
        path.read_text()
        for folder in (
            *("openclaw", "openclaw_combine", "openclaw-test", "benchmarks", "slime/tools", "slime/slime/utils"),
            *("slime/slime/contract", "extensions/example-method", "scripts"),
        )
        for path in (repository / folder).rglob("*.py")
    )
    for page in pages(repository):
        for flag in set(re.findall(r"`[^`]*?(--[a-z][a-z0-9-]+)", page.read_text())):
            assert flag in known | WORDS_OF_OTHER_PROGRAMS or f'"{flag}"' in sources, (
                f"{page.name} names {flag}, which no program has"
            )


def test_every_variable_in_the_documentation_exists(repository: Path) -> None:
    scripts = [repository / "scripts" / "launch.sh", *(repository / "slime" / "scripts" / "models").glob("*.sh")]
    shell = "".join(path.read_text() for path in scripts)
    known = {name for variable in (*VARIABLES, *LAUNCH_VARIABLES) for name in variable.names}
    others = {
        "PYTHONPATH",
        "CUDA_VISIBLE_DEVICES",
        "WANDB_API_KEY",
        "WANDB_KEY",
        "METHOD",
        "MODEL",
        *re.findall(r"[A-Z]+_ARGS\w*", shell),
        "LEDGER",
        "FILE",
        "ID",
        "HINT_START",
        "HINT_END",
        *FORWARDED,
        *("CUDA_HOME", "CXX", "PATH", NOSET),
        ADDRESS_VARIABLE,
        "RAY_JOB_STOP_WAIT_TIME_S",
        TOKEN_VARIABLE,
        MODE_VARIABLE,
        # scripts/setup.sh and the programs it runs
        *("PYTHON", "TORCH_INDEX", "PATH", "CUDA_HOME", "CUDA_PATH"),
        *("PIP_NO_CACHE_DIR", "PIP_CACHE_DIR", "TMPDIR", "UV_DEFAULT_INDEX"),
    }
    for page in pages(repository):
        for name in set(re.findall(r"`([A-Z][A-Z0-9_]{2,})(?:=[^`]*)?`", page.read_text())):
            assert name in known | others or name in PREFIXES or travels(name), (
                f"{page.name} names {name}, which nothing reads"
            )


def test_every_file_the_documentation_links_exists(repository: Path) -> None:
    for page in pages(repository):
        for target in re.findall(r"\]\((?!https?:)([^)#]+)", page.read_text()):
            assert (page.parent / target).exists(), f"{page.name} links {target}"


def test_every_script_the_documentation_runs_exists(repository: Path) -> None:
    for page in pages(repository):
        for script in re.findall(
            r"(?:bash )?((?:openclaw-[a-z]+|tests|scripts)/[\w./-]+\.(?:sh|py))", page.read_text()
        ):
            assert (repository / script).exists() or "mymethod" in script, f"{page.name} runs {script}"
