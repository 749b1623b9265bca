"""What the documentation names exists, and what exists is documented."""

from __future__ import annotations

import argparse
import re
import runpy
import subprocess
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import reference_pages
from chat import AGENT_KEY
from evaluation.terminal import MAX_STEPS
from gui_task import Task as GuiTask
from pool_server import OLDER as OLDER_WORKER
from pool_server import WorkerVariables
from router_server import OLDER as OLDER_ROUTER
from simulated_users.llm import KEY_VARIABLE as USER_LLM_KEY
from swe_task import Task as SweTask
from terminal_task import OLDER as OLDER_TRAINER
from terminal_task import Task as TerminalTask
from toolcall_task import Task as ToolcallTask

from agentrl.bridges.verifiers import PATH_VARIABLE, PYTHON_VARIABLE
from agentrl.rollout.settings import Settings
from agentrl.sandbox.remote import DOMAIN_VARIABLE as E2B_DOMAIN_VARIABLE
from agentrl.sandbox.remote import KEY_VARIABLE as E2B_KEY_VARIABLE
from agentrl.tasks.gui.osworld.settings import VmSettings
from agentrl.tasks.gui.settings import GuiSettings
from agentrl.tasks.gui.source import GuiSource
from agentrl.tasks.swe.source import InstanceSource
from agentrl.tasks.terminal.source import TaskSource
from agentrl.tasks.toolcall.settings import ToolSettings
from agentrl.web.options import KEY_VARIABLE
from benchmarks.promise_parts.rows import TABLE
from openclaw.config.runtime import HYGIENE_RULES
from openclaw.config.runtime_variables import VARIABLES
from openclaw.launch.guides import OF_SERVICE
from openclaw.launch.methods import methods_of
from openclaw.launch.task import KIND_VARIABLE
from openclaw.launch.variables import LAUNCH_VARIABLES
from slime.arguments.cluster import ADDRESS_VARIABLE, MODE_VARIABLE, TOKEN_VARIABLE
from slime.arguments.parser import build_parser, parser_for
from slime.arguments.process_environment import NOSET
from slime.contract import CLAUSES
from slime.utils.forwarded_environment import FORWARD_VARIABLE, FORWARDED, PREFIXES, travels
from slime.utils.kernel_caches import FOLDERS as KERNEL_FOLDERS
from slime.utils.kernel_caches import VARIABLE as KERNEL_CACHE
from tests.helpers.reasons import stated_reasons

WORDS_OF_OTHER_PROGRAMS = {
    *("--head", "--address", "--dashboard-host", "--runtime-env-json", "--working-dir"),
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
    "--local-dir",
    *("--user", "--scope", "--security-opt"),
}


CHANGES = "changes_for_users.md"
GUIDES = "instructions/guides"
"""Pages about other documents. They name flags and variables of those, which the table of promises tries."""
MAX_WORDS = 1200
MAX_SENTENCE = 30
MAX_LINE = 100
CHINESE = r"[\u4e00-\u9fff]"
WORDS_OF_A_CHARACTER = 0.5
"""A Chinese page has about two characters where its English twin has a word."""
ANCHOR = r'^<a id="([a-z0-9-]+)"></a>$'


def pages(repository: Path) -> list[Path]:
    """Return every page that is written by hand and says how things are now."""
    folders = (
        "",
        "instructions/",
        f"{GUIDES}/",
        "instructions/clients/",
        "instructions/zh/",
        "instructions/zh/clients/",
        "benchmarks/",
        "requirements/",
        "agentrl/tasks/gui/osworld/",
        "openclaw-*/",
        "*-rl/",
    )
    every = dict.fromkeys(page for folder in folders for page in repository.glob(f"{folder}*.md"))
    return [page for page in every if page.name not in (CHANGES, reference_pages.OWN_PAGE)]


def log_pages(repository: Path) -> list[Path]:
    """Return the pages of the log, and that of changes. They name flags, variables and scripts of their day."""
    return [*sorted((repository / "log").glob("*.md")), repository / "instructions" / CHANGES]


def linked_pages(repository: Path) -> list[Path]:
    """Return every page whose links have to resolve."""
    readmes = [*repository.glob("openclaw/*/*.md"), *repository.glob("extensions/*/README.md")]
    return [*pages(repository), *log_pages(repository), *reference_pages.written_pages(), *readmes]


def words_in_code(page: Path) -> list[str]:
    """Return the words that a page sets as code."""
    return re.findall(r"`(\w+)`", page.read_text())


def without_code(text: str) -> str:
    """Return a page without its code blocks."""
    return re.sub(r"^ *```.*?^ *```$", "", text, flags=re.MULTILINE | re.DOTALL)


def sentences(text: str) -> Iterator[str]:
    """Yield the sentences of a page: those of its paragraphs, list items and table cells; code and a link count as a word."""
    text = re.sub(r"`[^`]*`", "code", without_code(text))
    text = re.sub(r"\]\([^)]*\)", "]", text)
    text = re.sub(r"^(#|<!--|<a id=).*$", "", text, flags=re.MULTILINE)
    text = re.sub(r"^\|(.*)\|$", lambda row: "\n\n" + row[1].replace("|", "\n\n") + "\n\n", text, flags=re.MULTILINE)
    text = re.sub(r"^ *([*-]|\d+\.) ", "\n\n", text, flags=re.MULTILINE)
    for paragraph in re.split(r"\n\s*\n", text):
        yield from re.split(r"(?<=[.!?])\s+|(?<=[。！？])", paragraph.strip())


def words(text: str) -> int:
    """Return the length of a text in words; a Chinese character counts as a part of one."""
    others = re.sub(rf"{CHINESE}|[\u3000-\u303f\uff00-\uffef]", " ", text).split()
    return round(len(others) + WORDS_OF_A_CHARACTER * len(re.findall(CHINESE, text)))


def anchors(page: Path) -> set[str]:
    """Return the anchors that a page sets, and those that GitHub gives its headings."""
    text = without_code(page.read_text())
    headings = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    given = {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}
    return given | set(re.findall(ANCHOR, text, re.MULTILINE))


def test_the_reference_pages_are_what_the_code_declares() -> None:
    written = reference_pages.pages()
    assert reference_pages.written_pages() == written.keys(), "run: python scripts/reference_pages.py"
    for path, text in written.items():
        assert path.read_text() == text, f"{path} is old; run: python scripts/reference_pages.py"


def test_every_declaration_is_on_one_reference_page(repository: Path) -> None:
    text = "\n".join(reference_pages.pages().values())
    rows = Counter(re.findall(r"^\| (`--[^|]*) \|", text, re.MULTILINE))
    shown = [action for action in build_parser()._actions if action.help not in (None, argparse.SUPPRESS)]
    for action in shown:
        if action.dest != "help":
            assert rows[", ".join(f"`{name}`" for name in action.option_strings)] == 1, action.option_strings
    for clause in CLAUSES:
        assert text.count(f"| {clause} |") == 1, clause
    configuration = (repository / "instructions" / "configuration.md").read_text()
    assert [
        page.name for page in reference_pages.FOLDER.glob("*.md") if f"(reference/{page.name})" not in configuration
    ] == []


def test_a_page_is_short_enough_to_read(repository: Path) -> None:
    for page in (*pages(repository), *log_pages(repository)):
        text, name = page.read_text(), page.relative_to(repository)
        assert words(text) <= MAX_WORDS, f"{name} has {words(text)} words: split it"
        if page.name == "CONTRIBUTING.md":
            continue
        long = [sentence for sentence in sentences(text) if words(sentence) > MAX_SENTENCE]
        assert not long, f"{name} has sentences of more than {MAX_SENTENCE} words: {long}"
        if re.search(CHINESE, text):
            continue  # a Chinese line breaks only after punctuation: test_chinese_pages.py
        lines = [line for line in without_code(text).splitlines() if not line.startswith(("|", "    "))]
        assert [line for line in lines if len(line) > MAX_LINE] == [], f"{name}: wrap at {MAX_LINE}"


def test_the_index_has_every_page(repository: Path) -> None:
    for folder, pattern in (
        ("instructions", "*.md"),
        ("instructions", "guides/*.md"),
        ("instructions", "clients/*.md"),
        ("instructions/zh", "*.md"),
        ("instructions/zh", "clients/*.md"),
        ("log", "*.md"),
    ):
        index = (repository / folder / "README.md").read_text()
        for page in (repository / folder).glob(pattern):
            name = page.relative_to(repository / folder).as_posix()
            assert name == "README.md" or index.count(f"]({name})") == 1, (
                f"the index of {folder}/ has to link {name} once"
            )


def test_an_entry_of_the_log_has_an_anchor_and_a_date(repository: Path) -> None:
    named: Counter[str] = Counter()
    for page in (repository / "log").glob("*.md"):
        _, *entries = re.split(r"^## ", without_code(page.read_text()), flags=re.MULTILINE)
        for entry in entries if page.name != "README.md" else ():
            heading, _, text = entry.partition("\n\n")
            assert re.match(r"20\d\d-\d\d-\d\d", text), f"{page.name}: begin the entry {heading!r} with its date"
        own = re.findall(ANCHOR, without_code(page.read_text()), re.MULTILINE)
        assert page.name == "README.md" or len(own) == len(entries), f"{page.name}: an entry has no anchor of its own"
        named.update(own)
    assert [anchor for anchor, count in named.items() if count > 1] == [], "an anchor names one entry of the whole log"


def test_every_entry_of_the_log_that_a_file_names_exists(repository: Path) -> None:
    command = ["git", "grep", "-hoIE", r"\blog/[a-z_]+\.md(#[a-z0-9-]+)?", "--", ":!tests/unit/test_documentation.py"]
    found = subprocess.run(command, cwd=repository, capture_output=True, text=True, check=True).stdout.split()
    assert "log/tiny_demo.md#tiny-profile" in found
    for target in set(found):
        name, _, anchor = target.partition("#")
        assert (repository / name).exists(), f"a file names {target}"
        assert not anchor or anchor in anchors(repository / name), f"a file names {target}, which has no such entry"


def test_the_table_of_rooms_is_marked(repository: Path) -> None:
    page = (repository / "instructions" / "architecture.md").read_text()
    assert re.search(r"<!-- rooms:begin -->\n\|.*\|\n<!-- rooms:end -->", page, re.DOTALL)


def test_every_flag_in_the_documentation_exists(repository: Path) -> None:
    plugin = ["--custom-generate-function-path", "generate_with_gui.generate"]
    known = {name for action in parser_for(plugin)._actions for name in action.option_strings}
    sources = "".join(
        path.read_text()
        for folder in (
            *(
                "agentrl",
                "openclaw",
                "openclaw_combine",
                "openclaw-tinker",
                "openclaw-fireworks",
                "lab",
                "openclaw-test",
                "terminal-rl",
                "gui-rl",
                "swe-rl",
                "benchmarks",
                "slime/tools",
                "slime/groundwork",
                "slime/chat_codec",
                "slime/slime/utils",
            ),
            *(
                "slime/slime/contract",
                "slime/slime/conversion",
                "extensions/example-method",
                "scripts",
                "tests/flag_mutations",
                "tests/page_commands",
                "tests/security",
            ),
        )
        for path in (repository / folder).rglob("*.py")
    )
    tried = set(re.findall(r"--[a-z][a-z0-9_-]+", TABLE.read_text()))
    for page in pages(repository):
        of_guides = tried if page.parent == repository / GUIDES else set()
        for flag in set(re.findall(r"`[^`]*?(--[a-z][a-z0-9_-]+)", page.read_text())):
            assert flag in known | WORDS_OF_OTHER_PROGRAMS | of_guides or f'"{flag}"' in sources, (
                f"{page.name} names {flag}, which no program has"
            )


def test_every_variable_in_the_documentation_exists(repository: Path) -> None:
    scripts = [repository / "scripts" / "launch.sh", *(repository / "slime" / "scripts" / "models").glob("*.sh")]
    shell = "".join(path.read_text() for path in scripts)
    of_methods = (variable for method in methods_of() for variable in method.config.variables())
    tasks = (TerminalTask, GuiTask, SweTask, ToolcallTask)
    of_tasks = {name for task in tasks for names in task.aliases.values() for name in names}
    of_tools = (*ToolSettings.variables(), *ToolcallTask.variables())
    of_workers = WorkerVariables.variables()
    of_terminals = (*TaskSource.variables(), *TerminalTask.variables(), *of_workers, MAX_STEPS)
    of_screens = (*GuiTask.variables(), *GuiSource.variables(), *GuiSettings.variables(), *VmSettings.variables())
    of_issues = (*InstanceSource.variables(), *SweTask.variables())
    of_agents = (*Settings.variables(), *of_tools, *of_terminals, *of_issues, *of_screens)
    of_scripts = "".join(path.read_text() for path in repository.glob("*-rl/**/*.sh"))
    known = {name for variable in (*VARIABLES, *LAUNCH_VARIABLES, *of_methods, *of_agents) for name in variable.names}
    others = {
        *(*OLDER_TRAINER, *OLDER_WORKER, *OLDER_ROUTER, *of_tasks, KIND_VARIABLE),
        "PYTHONPATH",
        "CUDA_VISIBLE_DEVICES",
        "WANDB_API_KEY",
        "WANDB_KEY",
        "METHOD",
        "MODEL",
        *re.findall(r"[A-Z]+_ARGS\w*", shell),
        *re.findall(r"\$\{([A-Z_]+):[-+]", of_scripts),
        "LEDGER",
        "FILE",
        "ID",
        *("ABLATIONS", "ESTIMATORS", "LOSSES", "TRANSPORTS", "CHECKS", "OWN_PATTERNS", "ANCHORS"),
        "NO_COLOR",
        "HINT_START",
        "HINT_END",
        *FORWARDED,
        FORWARD_VARIABLE,
        *(KERNEL_CACHE, *KERNEL_FOLDERS),
        *("CUDA_HOME", "CXX", "PATH", NOSET),
        *(PYTHON_VARIABLE, PATH_VARIABLE),
        ADDRESS_VARIABLE,
        *(E2B_KEY_VARIABLE, E2B_DOMAIN_VARIABLE),
        "RAY_JOB_STOP_WAIT_TIME_S",
        TOKEN_VARIABLE,
        KEY_VARIABLE,
        *(USER_LLM_KEY, AGENT_KEY),
        *runpy.run_path(str(repository / "openclaw-fireworks" / "run.py"))["OF_GUIDES"],
        *(name for names in OF_SERVICE.values() for name in names),
        MODE_VARIABLE,
        # scripts/setup.sh and the programs it runs
        *("PYTHON", "TORCH_INDEX", "PATH", "CUDA_HOME", "CUDA_PATH"),
        *("PIP_NO_CACHE_DIR", "PIP_CACHE_DIR", "TMPDIR", "UV_DEFAULT_INDEX"),
    }
    tried = set(re.findall(r"[A-Z][A-Z0-9_]{2,}", TABLE.read_text()))
    for page in pages(repository):
        of_guides = tried if page.parent == repository / GUIDES else set()
        for name in set(re.findall(r"`([A-Z][A-Z0-9_]{2,})(?:=[^`]*)?`", page.read_text())):
            assert name in known | others | of_guides or name in PREFIXES or travels(name), (
                f"{page.name} names {name}, which nothing reads"
            )


def test_every_link_of_the_documentation_resolves(repository: Path) -> None:
    for page in linked_pages(repository):
        text = re.sub(r"`[^`\n]*`", "", without_code(page.read_text()))
        for target in re.findall(r"\]\((?!https?:)([^)\s]+)\)", text):
            name, _, anchor = target.partition("#")
            path = (page.parent / name).resolve() if name else page
            place = page.relative_to(repository)
            assert path.exists(), f"{place} links {target}"
            assert not anchor or anchor in anchors(path), f"{place} links {target}, which has {sorted(anchors(path))}"


def test_every_script_the_documentation_runs_exists(repository: Path) -> None:
    for page in pages(repository):
        for script in re.findall(
            r"(?:bash )?((?:openclaw-[a-z]+|terminal-rl|swe-rl|gui-rl|tests|scripts)/[\w./-]+\.(?:sh|py))",
            page.read_text(),
        ):
            assert (repository / script).exists() or "mymethod" in script, f"{page.name} runs {script}"


def test_every_type_and_module_of_the_glossary_exists(repository: Path) -> None:
    rows = re.findall(r"^\| (.+) \| (.+) \| (.+) \|$", (repository / "instructions" / "glossary.md").read_text(), re.M)[
        1:
    ]
    assert len({word for word, _, _ in rows}) == len(rows) >= 40
    for word, _, home in rows:
        [path] = re.findall(r"`([\w/-]+\.py)`", home)
        source = (repository / path).read_text()
        for name in re.findall(r"`(\w+)` of", home):
            assert re.search(rf"^class {name}\b", source, re.MULTILINE), f"{word}: {path} has no type {name}"


def test_every_reason_against_training_is_on_the_page(repository: Path) -> None:
    given = stated_reasons(repository)
    assert {"grammar", "too_long", "judge_refused", "no_hint", "score_zero", "no_lesson"} <= given
    own = repository.glob(f"openclaw-*/{reference_pages.OWN_PAGE}")
    shown = {word for page in (repository / "instructions" / "ledger.md", *own) for word in words_in_code(page)}
    assert (given | set(HYGIENE_RULES)) - shown == set()


def test_an_answer_to_a_question_is_short_and_says_where_to_go_on(repository: Path) -> None:
    text = (repository / "instructions" / "faq.md").read_text()
    answers = re.findall(r"^\*\*([^*]+\?)\*\*\s(.+?)(?=\n\n|\Z)", text, re.MULTILINE | re.DOTALL)
    assert len(answers) == text.count("**") / 2 >= 30
    for question, answer in answers:
        assert len(list(sentences(answer))) <= 3, question
        assert "](" in answer or "`" in answer, f"{question} names no page and no command"
