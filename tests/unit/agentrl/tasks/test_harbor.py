"""Task folders: what is read is what was written, and a bad folder's error says what to mend."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from agentrl.tasks.gui.osworld.settings import VmSettings
from agentrl.tasks.gui.osworld.source import pool_files
from agentrl.tasks.harbor import MAX_BYTES, File, HarborTask, read_task, write_task
from agentrl.tasks.links import unlinked
from agentrl.tasks.swe.importers import read_raw
from agentrl.tasks.swe.repository import from_folder
from agentrl.tasks.swe.source import InstanceSource
from agentrl.tasks.terminal.source import TaskSource
from groundwork.exceptions import ConfigError

TOML = """
version = "1.0"
[metadata]
tags = ["x"]
[agent]
timeout_sec = 30
[environment]
cpus = 2
memory_mb = 1024
allow_internet = false
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a good task folder."""
    task = HarborTask(
        "good",
        "Do it.\n",
        {"a/b.txt": File(b"\xff\0"), "run.sh": File(b"true\n", 0o755)},
        {"test.sh": File(b"exit 0\n", 0o755)},
        {"solve.sh": File(b"true\n")},
    )
    write_task(task, TOML, tmp_path / "good")
    return tmp_path / "good"


def test_what_is_written_is_read(folder: Path) -> None:
    task = read_task(folder)
    assert (task.name, task.instruction) == ("good", "Do it.\n")
    assert task.environment == {"a/b.txt": File(b"\xff\0"), "run.sh": File(b"true\n", 0o755)}
    assert task.tests == {"test.sh": File(b"exit 0\n", 0o755)}
    assert task.solution == {"solve.sh": File(b"true\n")}
    assert (task.settings.agent.timeout_sec, task.settings.verifier.timeout_sec) == (30, 600)
    limits = task.settings.environment.limits
    assert (limits.cpus, limits.memory_mib, limits.disk_mib) == (2, 1024, 256)


def test_an_image_comes_by_name(folder: Path) -> None:
    (folder / "environment/Dockerfile").write_text("FROM x")
    with pytest.raises(ConfigError, match="docker_image"):
        read_task(folder)
    (folder / "task.toml").write_text(TOML + 'docker_image = "some/image:1"\n')
    assert read_task(folder).settings.environment.docker_image == "some/image:1"


@pytest.mark.parametrize(
    ("text", "memory", "disk"),
    [
        ("memory_mb = 2048\nstorage_mb = 10240", 2048, 10240),
        ('memory = "2G"\nstorage = "10G"', 2048, 10240),
        ('memory = "512MiB"\nstorage = "1.5 g"', 512, 1536),
        ('memory = "1K"\nstorage = "1T"', 1, 2**20),
        ('memory = "2G"\nmemory_mb = 700', 700, 256),
        ("gpus = 0", 512, 256),
    ],
)
def test_sizes_in_new_and_older_words(folder: Path, text: str, memory: int, disk: int) -> None:
    (folder / "task.toml").write_text(f"[environment]\ncpus = 2\n{text}\n")
    limits = read_task(folder).settings.environment.limits
    assert (limits.memory_mib, limits.disk_mib, limits.cpus) == (memory, disk, 2)


def test_variables(folder: Path) -> None:
    (folder / "task.toml").write_text("[environment.env]\nA = '1'\n[verifier]\nenv = { B = 'two' }\n")
    settings = read_task(folder).settings
    assert (settings.environment.env, settings.verifier.env) == ({"A": "1"}, {"B": "two"})


def test_a_folder_is_not_written_over(folder: Path) -> None:
    with pytest.raises(ConfigError, match="exists"):
        write_task(read_task(folder), TOML, folder)


def _toml(text: str) -> Callable[[Path], object]:
    return lambda folder: (folder / "task.toml").write_text(text)


def _link(folder: Path) -> None:
    (folder / "tests/key").symlink_to("/etc/passwd")


def _linked(name: str) -> Callable[[Path], object]:
    """Return what puts a link to a file or folder elsewhere in the place of a part of a task."""

    def spoil(folder: Path) -> None:
        (folder / name).rename(folder.parent / "elsewhere")
        (folder / name).symlink_to(folder.parent / "elsewhere")

    return spoil


def _compose(services: str, name: str = "docker-compose.yaml", toml: str = "") -> Callable[[Path], object]:
    def spoil(folder: Path) -> None:
        (folder / "environment" / name).write_text(f"services: {services}\n")
        (folder / "task.toml").write_text(TOML + toml)

    return spoil


def _tests(**files: str) -> Callable[[Path], object]:
    """Return what replaces the verifier's files."""

    def spoil(folder: Path) -> None:
        for name, text in files.items():
            (folder / "tests" / name.replace("_", ".")).write_text(text)

    return spoil


IMAGE = 'docker_image = "x:1"\n'
TWO = "{a: {image: x}, b: {image: y}}"
CANNOT_RUN = [
    (_compose(TWO), "has 2 services"),
    *((_compose(TWO, name), "has 2 services") for name in ("docker-compose.yml", "compose.yaml", "compose.yml")),
    (_compose(TWO, toml=IMAGE), "has 2 services"),
    (_compose("{a: {image: x}}"), "has a docker-compose.yaml; build it"),
    (_compose("[1]", toml=IMAGE), "has no services"),
    *(
        (_toml(text), says)
        for text, says in (
            ("[[steps]]\nname = 'a'\n[[steps]]\nname = 'b'", "has 2 steps"),
            ("[verifier]\nenvironment_mode = 'separate'", "'separate' needs a second image"),
            ("[environment]\ncpus = inf", "environment.cpus"),
            ("[environment]\ncpus = nan", "environment.cpus"),
            ("[environment]\nmemory_mb = 1000000000000", "environment.memory_mb"),
            ("[environment]\nstorage_mb = 1000000000000", "environment.storage_mb"),
            (f"[environment]\nmemory = '{'9' * 400}T'", "environment.memory_mb"),
            *(
                (f"[environment]\ndocker_image = {name!r}", "is not a name of an image")
                for name in ("--privileged", "", "a b", "a,b", "-v")
            ),
        )
    ),
    (
        _tests(test_sh="python3 grade.py", grade_py="open('/logs/verifier/reward.txt', 'w').write('1')"),
        "grade.py writes below /logs",
    ),
    (_tests(test_sh="D=/logs/verifier\necho 1 > $D/reward.txt # REWARD_FILE"), "test.sh writes below /logs"),
    (_tests(test_sh="# REWARD_FILE\ncd /logs && echo 1 > verifier/reward.txt"), "test.sh writes below /logs"),
    (_tests(test_sh="cd / && cd logs/verifier && echo 1 > reward.txt"), "test.sh writes below /logs"),
    (_tests(test_sh="echo '{}' > /logs/verifier/reward.json"), "test.sh writes below /logs"),
    *(
        (_linked(name), "is a symbolic link")
        for name in (
            "instruction.md",
            "task.toml",
            "environment",
            "tests",
            "solution",
            "tests/test.sh",
            "environment/a",
        )
    ),
]


@pytest.mark.parametrize(("spoil", "says"), CANNOT_RUN)
def test_a_folder_that_cannot_run(folder: Path, spoil: Callable[[Path], object], says: str) -> None:
    spoil(folder)
    with pytest.raises(ConfigError, match=says):
        read_task(folder)


@pytest.mark.parametrize(
    "change",
    [
        _compose("{a: {build: .}}", toml=IMAGE),
        _toml("[verifier]\nenvironment_mode = 'shared'"),
        _tests(test_sh="python3 grade.py", grade_py="import os; open(os.environ['REWARD_FILE'], 'w').write('1')"),
        _tests(test_sh="echo 'a # b' > ${REWARD_FILE:-/logs/verifier/reward.txt}"),
        _tests(
            test_sh='echo "#" > "${#x}"; python3 grade.py "$REWARD_FILE"', grade_py="# writes /logs/verifier/reward.txt"
        ),
        _tests(test_sh="grader-of-the-image"),
        _tests(test_sh="cat /logs.txt # /logs/verifier"),
    ],
)
def test_a_folder_that_may_run(folder: Path, change: Callable[[Path], object]) -> None:
    change(folder)
    read_task(folder)


def test_byte_order_marks_are_no_text(folder: Path) -> None:
    for name in ("task.toml", "instruction.md"):
        (folder / name).write_bytes(b"\xef\xbb\xbf" + (folder / name).read_bytes())
    task = read_task(folder)
    assert (task.instruction, task.settings.agent.timeout_sec) == ("Do it.\n", 30)


def test_the_folder_itself_may_be_a_link(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "named").symlink_to(folder)
    assert read_task(tmp_path / "named").instruction == "Do it.\n"


def test_paths_of_folders_of_others(tmp_path: Path) -> None:
    root = tmp_path / "root"
    (root / "a").mkdir(parents=True)
    (root / "a" / "file").touch()
    (root / "b").symlink_to(root / "a")
    (tmp_path / "link").symlink_to(root)
    assert unlinked(tmp_path / "link", tmp_path / "link" / "a" / "file").is_file()
    for path, says in {
        "b/file": "symbolic link",
        "b": "symbolic link",
        "../x": "leaves",
        "a/../../x": "leaves",
    }.items():
        with pytest.raises(ConfigError, match=says):
            unlinked(root, root / path)


def _pipe(folder: Path) -> None:
    os.mkfifo(folder / "environment/pipe")


@pytest.mark.parametrize(
    ("spoil", "says"),
    [
        (lambda f: (f / "instruction.md").unlink(), "instruction.md is missing"),
        (lambda f: (f / "instruction.md").write_text(" \n"), "instruction.md is empty"),
        (lambda f: (f / "instruction.md").write_bytes(b"\xff"), "UTF-8"),
        (lambda f: (f / "task.toml").unlink(), "task.toml is missing"),
        (lambda f: (f / "task.toml").write_text("x = "), "is not TOML"),
        (lambda f: (f / "task.toml").write_text("[agent]\ntimeout_sec = -1"), "agent.timeout_sec"),
        (lambda f: (f / "task.toml").write_text("[environment]\nmemory_mb = 'lots'"), "environment.memory_mb"),
        (
            lambda f: (f / "task.toml").write_text("[environment]\nmemory = 'lots'"),
            "'lots' is not a size; write memory_mb",
        ),
        (lambda f: (f / "task.toml").write_text("[environment]\ngpus = 1"), "needs 1 GPUs, and no sandbox has one"),
        (lambda f: (f / "task.toml").write_text("[environment.env]\nHOME = 'x'"), "HOME is set by the sandbox"),
        (
            lambda f: (f / "task.toml").write_text("[verifier.env]\nKEY = '${KEY}'"),
            "KEY asks for a variable of the host",
        ),
        (lambda f: (f / "task.toml").write_text("[verifier.env]\n'a b' = ''"), "'a b' is not a name of a variable"),
        (lambda f: (f / "tests/test.sh").write_text("echo 1 > /logs/verifier/reward.txt"), "which no sandbox has"),
        (lambda f: (f / "tests/test.sh").unlink(), "test.sh is missing"),
        (lambda f: (f / "solution/solve.sh").rename(f / "solution/x.sh"), "no solve.sh"),
        (lambda f: (f / "environment/big").write_bytes(bytes(MAX_BYTES)), "bytes of files"),
        (_link, "symbolic link"),
        (_pipe, "is not a plain file"),
    ],
)
def test_a_bad_folder(folder: Path, spoil: Callable[[Path], object], says: str) -> None:
    spoil(folder)
    with pytest.raises(ConfigError, match=says):
        read_task(folder)


def test_no_folder(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="is not a folder"):
        read_task(tmp_path / "none")


def test_no_reader_of_folders_of_others_follows_a_link(tmp_path: Path) -> None:
    """Rows of a data set, its repositories and folders, rows that name task folders, and OSWorld's tasks."""
    secret = tmp_path / "secret"
    secret.mkdir()
    (secret / "report.json").write_text("{}")
    (secret / "1.json").write_text("{}")
    data = tmp_path / "data"
    (data / "repos").mkdir(parents=True)
    (data / "swe-gym.jsonl").symlink_to(secret / "1.json")
    (data / "repos" / "a-1.tar").symlink_to(secret / "1.json")
    (data / "repos" / "x__y.git").symlink_to(secret)
    (data / "one").mkdir()
    (data / "one" / "report.json").symlink_to(secret / "report.json")
    (data / "examples" / "os").mkdir(parents=True)
    (data / "examples" / "os" / "1.json").symlink_to(secret / "1.json")
    (data / "task").symlink_to(secret)
    (data / "rows.jsonl").write_text('{"task": {"task_path": "task"}}\n')
    readers: list[Callable[[], object]] = [
        lambda: InstanceSource(path=str(data), benchmark="swe-gym").instances,
        lambda: from_folder(data, "a-1", "a/b", "c"),
        lambda: from_folder(data, "none", "x/y", "c"),
        lambda: list(read_raw(data)),
        lambda: list(read_raw(data / "one")),
        lambda: pool_files(VmSettings(task_dir=str(data))),
        lambda: TaskSource(task_type="jsonl", dataset_dir=str(data / "rows.jsonl")).ids(),
    ]
    for number, reader in enumerate(readers):
        with pytest.raises(ConfigError, match="is a symbolic link"):
            print(number, reader())
