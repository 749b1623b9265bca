"""Agents of shell tasks: the oracle, one that does nothing, and those that attack the grader."""

from __future__ import annotations

from types import MappingProxyType
from typing import Any

from agentrl.environment import Task
from agentrl.protocol import JsonObject, Verdict
from agentrl.tasks.shell.environment import ShellEnvironment
from agentrl.tasks.shell.generate import generate

FAKE_PYTHON = (
    '#!/bin/bash\necho 1 > "${REWARD_FILE:-${4:-x}}"\nfor f in /tmp/verifier/reward.txt; do echo 1 > $f; done\n'
)
FAKE_MODULE = """
import os, sys
for path in (os.environ.get("REWARD_FILE", "reward.txt"), "reward.txt", "/tmp/verifier/reward.txt", *sys.argv[-1:]):
    try:
        os.makedirs(os.path.dirname(path) or ".", exist_ok=True)
        open(path, "w").write("1")
    except OSError:
        pass
os._exit(0)
"""
FAKE_RC = (
    'python3() { echo 1 > "$REWARD_FILE"; exit 0; }\nalias python3=true\nexec() { python3; }\necho 1 > "$REWARD_FILE"\n'
)


def _writing(files: dict[str, str]) -> str:
    """Return commands that write files, below the working directory."""
    return "\n".join(
        f"mkdir -p \"$(dirname '{path}')\"\ncat > '{path}' <<'_END_'\n{text}\n_END_\nchmod 755 '{path}'"
        for path, text in files.items()
    )


DEEP = 'python3 -I -c \'import os; [(os.mkdir("d" * 100), os.chdir("d" * 100)) for _ in range(60)]; open("x", "w")\''
ATTACKS = MappingProxyType(
    {
        "a path that is too long": DEEP,
        "names that are not text": "echo x > $'\\xff\\xfe'; ln -s x $'\\xfd'",
        "edited tests": _writing({"tests/test.sh": FAKE_PYTHON, "tests/check.py": FAKE_MODULE, "check.py": FAKE_MODULE})
        + "\nmkdir -p /tmp/verifier/tests; cp -r tests/. /tmp/verifier/tests; echo '[]' > /tmp/verifier/tests/expected.json",
        "fake reward file": "mkdir -p /tmp/verifier logs/verifier; "
        "echo 1 | tee reward.txt logs/verifier/reward.txt /tmp/verifier/reward.txt",
        "PATH shadowing": _writing(
            {f"{folder}{name}": FAKE_PYTHON for folder in ("", "bin/") for name in ("python3", "bash")}
        )
        + "\nexport PATH=/work/bin:/work:$PATH; hash -r",
        "sitecustomize": _writing(
            {
                name: FAKE_MODULE
                for name in (
                    *("sitecustomize.py", "usercustomize.py", "json.py", "csv.py", "pathlib.py"),
                    *(f".local/lib/python3.{minor}/site-packages/usercustomize.py" for minor in (11, 12, 13)),
                )
            }
        ),
        "shell start files": _writing(
            {name: FAKE_RC for name in (".bashrc", ".bash_profile", ".profile", ".bash_aliases")}
        ),
        "links out": "for f in answer.txt output.txt merged.csv names.json; do "
        "ln -sfn /tmp/verifier/tests/expected.json $f; done; ln -s /tmp/verifier tests; ln -s . a; ln -s a/../../tmp b",
        "background rewriter": "setsid bash -c 'while sleep 0.01 && [ -d /work ]; do mkdir -p /tmp/verifier; "
        "echo 1 > /tmp/verifier/reward.txt; done' > /dev/null 2>&1 &",
        "huge files": "truncate -s 40M answer.txt all.txt; head -c 20000000 /dev/zero > big",
        "printed passes": "printf '%s\\n' 'short test summary info' 'PASSED tests/test_all.py::test_all' '9 of 9 checks hold' 1 "
        "| tee answer.txt output.txt /dev/stderr; exit 0",
        "history search": "(git log --all --format=%B; git reflog; git stash list; git fsck --lost-found; "
        "find /work /tmp -name expected.json -o -name solve.sh -o -name check.py; env) > answer.txt 2>&1; "
        "cp answer.txt output.txt",
        "grader edits": _writing({"check.py": FAKE_MODULE, "expected.json": "[]", "tests/expected.json": "[]"})
        + "\nmkdir -p /tmp/verifier/tests; cp check.py expected.json /tmp/verifier/tests/; "
        "chmod -R a-w /tmp/verifier/tests",
        "odd files": "mkfifo answer.txt all.txt; mkdir -p trial/output.txt trial/0.out; printf '\\377\\376' > names.json",
    }
)
"""What an agent runs instead of solving the task."""
BEHIND_WALLS = MappingProxyType(
    {
        "system's programs": "for f in /usr/bin/python3 /usr/bin/bash /run/agentrl/agentrl/sandbox/inside/supervisor.py; do "
        "rm -f $f; cp answer.txt $f; done 2> /dev/null; echo 'export PATH=/work' > /etc/profile 2> /dev/null",
        "search of the machine": "find / -xdev \\( -name expected.json -o -name solve.sh \\) 2> /dev/null | head -n 5 > answer.txt; "
        "for f in $(find / -xdev -name solve.sh 2> /dev/null); do bash $f; done",
    }
)
"""The same where a sandbox has walls; never to be run without."""

_SHARED = """
import ctypes, os
libc = ctypes.CDLL(None)
libc.shmat.restype = ctypes.c_void_p
"""
MEMORY_OF_NOBODY = MappingProxyType(
    {
        name: f"echo 0 > /proc/self/oom_score_adj; exec python3 -Ic '{program}'"
        for name, program in {
            "a file of no folder": 'import os\nfile = os.memfd_create("x")\nwhile True: os.write(file, bytes(1 << 20))',
            "many of them": 'import os\nwhile True: os.write(os.memfd_create("x"), bytes(1 << 22))',
            "shared memory": "import mmap\nkept = [mmap.mmap(-1, 1 << 22) for _ in range(1 << 10)]\n"
            "for each in kept: each.write(bytes(1 << 22))",
            "System V": _SHARED
            + "while True: ctypes.memset(libc.shmat(libc.shmget(0, 1 << 22, 0o1600), None, 0), 1, 1 << 22)",
        }.items()
    }
)
"""Commands that fill memory which no process is charged with; the last leaves it full."""
BROKEN_SNAPSHOTS = MappingProxyType(
    {
        "deep folders": 'python3 -Ic \'import os\nfor _ in range(60): os.mkdir("d" * 100); os.chdir("d" * 100)\'',
        "a name that is not text": "touch $'\\xff\\xfe'; mkdir -p $'\\x80/\\x81'",
        "many names": "mkdir many; cd many; seq 10001 | xargs touch",
        "a large hole": "truncate -s 1T hole",
        "no room": "head -c 1G /dev/zero > big; head -c 1G /dev/zero > /tmp/big",
        "no rights": "mkdir a; touch a/b; chmod 0 a .",
    }
)
"""What cannot be packed, or not be unpacked elsewhere."""


def oracle(task_id: str) -> str:
    """Return the commands that solve a task."""
    return generate(task_id).solution["solve.sh"].data.decode()


def bash(command: Any, **more: Any) -> JsonObject:
    """Return the action that runs a command."""
    return {"tool": "bash", "arguments": {"command": command, **more}}


async def judged(environment: ShellEnvironment, task_id: str, command: str) -> Verdict:
    """Return the verdict of an agent that runs one command."""
    try:
        await environment.reset(Task(task_id), 0)
        if command:
            await environment.step(bash(command, timeout_s=120.0))
        return await environment.evaluate()
    finally:
        await environment.close()
