"""What becomes of each command: the first rule whose pattern matches its program decides. No match is an error.

Every rule must decide about a command of a page; the test refuses one that no page needs any more.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from tests.page_commands.blocks import Command


class Kind(StrEnum):
    """How a command is tested, from as written to not at all."""

    RUN = "run"
    """As written, in seconds."""
    SERVER = "server"
    """As written, against our gateway with a stand-in engine."""
    DRY_RUN = "dry run"
    """With ``--dry-run``: plan, flags and files are checked, nothing starts."""
    PARSED = "parsed"
    """The program's own parser reads the words, and the program stops there."""
    USAGE = "usage"
    """A shell program: its ``--help`` names every word that the command gives it."""
    ELSEWHERE = "elsewhere"
    """Not run: ``why`` says what it needs. The files of this repository that it names exist."""

    @property
    def expensive(self) -> bool:
        """Whether ``--run`` is the only way to run it as written."""
        return self not in (Kind.RUN, Kind.SERVER)


@dataclass(frozen=True)
class Rule:
    """Commands of one kind. ``added`` are words that end a command which would go on for ever."""

    kind: Kind
    pattern: str
    why: str
    added: str = ""

    def matches(self, command: Command) -> bool:
        """Return whether the command's program matches."""
        return re.match(self.pattern, command.program) is not None


_TOOLS = r"slime/tools/\w+\.py|terminal-rl/(data_utils/\w+|router_server)\.py|openclaw-test/user_chat\.py|-m (agentrl\.(pool|router|harness) |benchmarks\.|slime\.ray\.worker_node |tests\.flag_mutations |tests\.security |openclaw\.models \S)"
_PROGRAMS = r"slime/(train|train_async|eval_only)\.py --|openclaw-test/personal_run\.py|-m openclaw\.(launch|server) -|openclaw-combine/serve_model\.py|openclaw-(tinker|fireworks)/run\.py"
RULES = (
    Rule(Kind.ELSEWHERE, r"curl \S+/v1/me/adapter ", "needs a server with an adapter for each person; tests/unit/gateway/test_own_adapter.py asks one"),
    Rule(Kind.ELSEWHERE, r"curl http://127\.0\.0\.1:8010/v1/usage ", "needs a server of the Tinker interface; tests/unit/tinker/test_app.py asks one"),
    Rule(Kind.SERVER, r"curl |(.* \| )?openclaw-rl chat\b|python -m openclaw_combine\.test_rollout ", "asks a gateway"),
    Rule(Kind.RUN, r"cd \S+$|(source|export|umask|printf) ", "the shell's state, and files of a few bytes"),
    Rule(Kind.RUN, r"python -m openclaw\.replay ", "reads a ledger"),
    Rule(Kind.PARSED, r"openclaw-rl export .*--adapter ", "needs a run with a checkpoint"),
    Rule(Kind.PARSED, r"openclaw-rl (export|forget) .*--person ", "needs a run with an adapter for each person"),
    Rule(Kind.RUN, r"openclaw-rl (inspect|report|export|forget|lessons) \S", "reads and edits a ledger"),
    Rule(Kind.PARSED, r"openclaw-rl (versions|rollback|accept) ", "needs a run with a gate's decisions"),
    Rule(Kind.DRY_RUN, r"openclaw-rl tinker ", "needs GPUs; tests/integration/test_tinker_server.py runs it on a CPU", "--dry-run"),
    Rule(Kind.PARSED, r"openclaw-rl init ", "writes files of the person's home; tests/unit/install/test_init.py runs it"),
    Rule(Kind.PARSED, r"openclaw-rl doctor ", "ends with status 1 on a full disk; tests/unit/seeing/test_doctor.py runs it"),
    Rule(Kind.RUN, r"python -m agentrl\.rollout\.inspect ", "reads records of episodes"),
    Rule(Kind.RUN, r"python -m openclaw\.(method (check|clauses)|models$)", "reads what is here"),
    Rule(Kind.RUN, r"python -m slime\.contract ", "checks plugins, here those that the page shows"),
    Rule(Kind.RUN, r"python -m agentrl\.tasks\.shell ", "lists tasks, and writes a few small folders"),
    Rule(Kind.RUN, r"python -m agentrl\.tasks\.swe (ids|export) ", "lists instances, and writes a small folder"),
    Rule(Kind.ELSEWHERE, r"python -m agentrl\.tasks\.swe (check|import|contamination) ", "needs a sandbox or a data set; tests/unit/agentrl/tasks/test_swe_importers.py and tests/integration/test_swe_tasks.py run them"),
    Rule(Kind.RUN, r"python -m agentrl\.tasks\.toolcall ", "lists tasks, and writes two small files"),
    Rule(Kind.ELSEWHERE, r"python toolcall-rl/\w+_\w+\.py ", "reads a data set; tests/unit/agentrl/tasks/test_toolcall_data.py runs it"),
    Rule(Kind.RUN, r"(bash )?scripts/setup\.sh doctor", "looks at the machine"),
    Rule(Kind.RUN, r"python -m tests\.page_commands$", "lists the commands of the pages"),
    Rule(Kind.RUN, r".* (--dry-run|--help)$", "starts nothing"),
    Rule(Kind.RUN, r"python -m pytest tests/contract/plugins", "the contract's tests on a plugin that the page shows", "-k test_contract"),
    Rule(Kind.SERVER, r"python openclaw-combine/collect_rollouts\.py", "follows a gateway until Ctrl-C", "--once"),
    Rule(Kind.ELSEWHERE, r"python (-m openclaw\.\w+|-m slime\.ray\.\w+|slime/train\.py --colocate|slime/train_grpo\.py|-m openclaw\.server --enable-rl-intercept)$|openclaw-rl \w+$", "a sentence names a program"),
    Rule(Kind.ELSEWHERE, r"python openclaw-fireworks/run\.py --delete ", "deletes what a run rents; tests/unit/rented/test_fireworks_rental.py has it done"),
    Rule(Kind.ELSEWHERE, r"openclaw-rl resume ", "needs a run whose training is paused; tests/unit/slime_core/test_fuses.py pauses one"),
    Rule(Kind.DRY_RUN, r"(bash )?(\S+/)?(run_\w+|launch_user_llm|deploy_to_(tinker|fireworks))\.sh", "starts engines and a trainer", "--dry-run"),
    Rule(Kind.DRY_RUN, r"python openclaw-combine/train_async\.py", "starts engines and a trainer in a process of its own, which sees this machine's GPUs", "--dry-run --gpu-memory-gb 80"),
    Rule(Kind.DRY_RUN, rf"python ({_PROGRAMS})", "starts engines or a trainer", "--dry-run"),
    Rule(Kind.DRY_RUN, r"ray job submit .* -- python3 ", "starts a training in a cluster of the user's", "--dry-run"),
    Rule(Kind.DRY_RUN, r"--", "flags to add to a line of the trainer", "--dry-run"),
    Rule(Kind.DRY_RUN, r"#!", "a launch script to copy", "--dry-run"),
    Rule(Kind.PARSED, rf"python ({_TOOLS})", "measures, converts or downloads: minutes, a GPU or a network"),
    Rule(Kind.ELSEWHERE, r"bash scripts/build_tiny_models\.sh", "sets up and trains for minutes; the integration tests build this model first"),
    Rule(Kind.ELSEWHERE, r"python -m lab\.window_pictures ", "needs a run in a browser; tests/integration/test_window_live.py takes such pictures"),
    Rule(Kind.ELSEWHERE, r"python -m lab.tiny_learning\.pictures\.\w+$", "renders or trains for minutes; tests/unit/tiny/test_pointing.py and tests/integration/test_screenshots.py test both"),
    Rule(Kind.ELSEWHERE, r"python -m lab\.tiny_models\.teachers ", "trains for a minute; tests/unit/tiny/test_teachers.py builds smaller ones"),
    Rule(Kind.ELSEWHERE, r"python -m lab.tiny_learning ", "trains for minutes; tests/unit/tiny/test_agent_learning.py tests what it trains on, and what is shipped"),
    Rule(Kind.USAGE, r"(bash )?(tests|scripts)/\w+\.sh", "sets up, resolves locks or tests: minutes and a network"),
    Rule(Kind.ELSEWHERE, r"python (scripts/(reference_pages|launch_scripts)\.py|-m slime\.arguments\.generate)$", "writes files of the repository; the fast tests compare them with the code"),
    Rule(Kind.ELSEWHERE, r"python -m pytest tests/gpu/", "needs a GPU"),
    Rule(Kind.ELSEWHERE, r"python -m pytest tests/integration/test_(gui_browser|vllm_live).py", "the suite runs this file"),
    Rule(Kind.ELSEWHERE, r"rm -rf \.venv && ", "replaces the environment that the tests run in; needs a GPU"),
    Rule(Kind.ELSEWHERE, r"python -m agentrl\.sandbox$", "needs bubblewrap; tests/integration/test_sandbox_containment.py runs it where there is one"),
    Rule(Kind.ELSEWHERE, r"cp gpu\.json ", "needs a GPU's measurements, and writes a file of the repository"),
    Rule(Kind.ELSEWHERE, r"python -m tests\.images$", "needs root and ten minutes; tests/unit/install/test_images.py tests what it reads"),
    Rule(Kind.ELSEWHERE, r"docker (build|run|compose) ", "needs Docker and a network"),
    Rule(Kind.ELSEWHERE, r"npm (install|test|run build)$", "needs Node; tests/integration runs the extension's own tests where there is one"),
    Rule(Kind.ELSEWHERE, r"openclaw (config|gateway|models|plugins) ", "needs OpenClaw; tests/integration runs it where there is one"),
    Rule(Kind.ELSEWHERE, r"(claude|codex|opencode|qwen|hermes) ", "needs the client; tests/integration/test_agent_clients.py runs it as written"),
    Rule(Kind.ELSEWHERE, r"ray (start|job submit|job stop|dashboard)\b", "starts or uses a cluster of the user's"),
    Rule(Kind.ELSEWHERE, r"python -m sglang\.launch_server ", "serves a model of the user's; tests/integration/test_teacher_logprobs.py asks such a server"),
    Rule(Kind.ELSEWHERE, r"npx skill", "a catalogue of other people"),
    Rule(Kind.ELSEWHERE, r"(python3\.12 -m venv|pipx? install) ", "makes an environment, which needs a network"),
    Rule(Kind.ELSEWHERE, r"tail -f logs/", "follows a run until Ctrl-C; tests/unit/slime_core/test_run_logs.py has the file and the link"),
)  # fmt: skip


class NoRuleError(LookupError):
    """No rule decides about a command."""


def rule_of(command: Command, rules: Sequence[Rule] = RULES) -> Rule:
    """Return the rule that decides about a command.

    Raises:
        NoRuleError: none does; says where the command stands and what to write.
    """
    for rule in rules:
        if rule.matches(command):
            return rule
    raise NoRuleError(
        f"{command.place}: no rule says how to test `{command.text}`; add a row to RULES in tests/page_commands/rules.py, "
        "of the first of these kinds that fits: " + ", ".join(Kind)
    )
