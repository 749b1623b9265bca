"""OSWorld's own shapes of rules, options and steps: what they score, and what is refused before anything starts."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from agentrl.tasks.gui.osworld.environment import Files, Supplies
from agentrl.tasks.gui.osworld.metrics import METRICS
from agentrl.tasks.gui.osworld.shapes import File, Until
from agentrl.tasks.gui.osworld.task_file import UnsupportedTask, checks_of, read_task

Scored = Callable[..., float]
MAIL = ["chrome://messenger/content/messenger.xhtml", "folderTree", "mode"]
SMART = {"key": MAIL, "method": "re", "ref": "\\bsmart\\b"}
STORE = {MAIL[0]: {MAIL[1]: {MAIL[2]: "all smart", "width": "240"}, "tags": "'b,a'", "open": True, "pages": [1, 7.5]}}
NS = "https://accessibility.ubuntu.example.org/ns"
TREE = f"""<desktop-frame xmlns:st="{NS}/state" xmlns:attr="{NS}/attributes" name="main">
<application name="Mail"><frame name="Inbox - Mail"><push-button name="Send" st:enabled="true" attr:class="toolbar send">Send now</push-button>
<entry name="To">ann@example.org</entry></frame></application><application name="Files"/></desktop-frame>"""


def written(folder: Path, **evaluator: Any) -> Path:
    """Write a task as OSWorld lays it out; the other keys describe it to people."""
    path = folder / "task.json"
    whole = {
        "id": "5a1ad3a5-0000-4000-8000-000000000001",
        "snapshot": "thunderbird",
        "instruction": "Show all inboxes as one.",
        "source": "https://example.org/question",
        "config": evaluator.pop("config", []),
        "trajectory": "trajectories/",
        "related_apps": ["thunderbird"],
        "proxy": False,
        "evaluator": evaluator,
    }
    path.write_text(json.dumps(whole))
    return path


@pytest.fixture
def scored(tmp_path: Path) -> Scored:
    """Return a function that reads a task with one metric, and scores a result."""

    def score(func: str, rules: Any, result: Any, found: Any = None, **options: Any) -> float:
        """Score with rules, or with what a getter found."""
        expected = (
            {"type": "rule", "rules": rules} if found is None else {"type": "vm_file", "path": "/gold", "dest": "gold"}
        )
        asked = {"type": "vm_file", "path": "/home/user/x", "dest": "x"}
        task = read_task(written(tmp_path, func=func, result=asked, expected=expected, options=options), password=False)
        (check,) = checks_of(task.evaluator)
        metric = METRICS[check.metric]
        wanted = metric.rules(rules) if found is None else found
        return metric.score(result, wanted, metric.options.model_validate(check.options))

    return score


def value(method: str, ref: Any, *key: Any) -> dict[str, Any]:
    """Return a rule on a value below the window."""
    return {"key": [MAIL[0], *key], "method": method, "ref": ref}


@pytest.mark.parametrize(
    ("rules", "score"),
    [
        ({"expect": [SMART]}, 1.0),
        ({"expect": [{**SMART, "ref": "\\bunified\\b"}]}, 0.0),
        ({"expect": [{**SMART, "method": "re.I", "ref": "SMART"}]}, 1.0),
        ({"expect": [{**SMART, "method": "re", "ref": "SMART"}]}, 0.0),
        ({"unexpect": [SMART]}, 0.0),
        ({"unexpect": [{**SMART, "ref": "gone"}]}, 1.0),
        ({"unexpect": [value("eq", "x", "nowhere", "at all")]}, 1.0),
        ({"unexpect": [value("re", "x", "nowhere")]}, 1.0),
        ({"unexpect": [value("ne", "x", "nowhere")]}, 0.0),
        ({"expect": [value("ne", "x", "nowhere")]}, 0.0),
        ({"expect": [SMART], "unexpect": [value("eq", True, "open")]}, 0.0),
        ({"expect": [SMART, value("eq", False, "open")]}, 0.0),
        ({"expect": [value("eq", True, "open")]}, 1.0),
        ({"expect": [value("ge", 7, "pages", 1)]}, 1.0),
        ({"expect": [value("gt", 7.5, "pages", 1)]}, 0.0),
        ({"expect": [value("lt", 7, "folderTree", "mode")]}, 0.0),
        ({"expect": [value("approx:0.5", 7, "pages", 1)]}, 1.0),
        ({"expect": [value("approx:0.4", 7, "pages", 1)]}, 0.0),
        ({"expect": [value("approx:1", 240, "folderTree", "width")]}, 1.0),
        ({"expect": [value("approx:1", 240, "folderTree", "mode")]}, 0.0),
        ({"expect": [value("range.te", [1, 7.5], "pages", 1)]}, 1.0),
        ({"expect": [value("range.te", [1, 7.5], "pages", 0)]}, 0.0),
        ({"expect": [value("range.ee", [1, 7.5], "pages", 0)]}, 1.0),
        ({"expect": [value("range.et", [1, 7.5], "pages", 1)]}, 0.0),
        ({"expect": [value("str_list_eq", ["b", "a"], "tags")]}, 1.0),
        ({"expect": [value("str_list_eq", ["a", "b"], "tags")]}, 0.0),
        ({"expect": [value("str_set_eq", ["a", "b"], "tags")]}, 1.0),
        ({"expect": [value("eq", 1, "pages", 9)]}, 0.0),
        ({"expect": [value("eq", "a", "tags", 3)]}, 0.0),
        ({"expect": [value("ne", "x", "tags", "deeper")]}, 0.0),
    ],
)
def test_check_json_compares_as_osworld_writes_it(rules: Any, score: float, scored: Scored) -> None:
    assert scored("check_json", rules, json.dumps(STORE).encode()) == score


@pytest.mark.parametrize("broken", [None, b"", b"{", b"null", b"[" * 100_000])
def test_what_an_agent_broke_is_wrong(broken: Any, scored: Scored) -> None:
    for rules in ({"expect": [SMART]}, {"unexpect": [SMART]}):
        assert scored("check_json", rules, broken) == 0.0 or broken == b"null"
        assert scored("check_json", rules, broken, is_yaml=True) == 0.0
    assert scored("check_accessibility_tree", [{"xpath": "//application"}], broken) == 0.0


def test_check_json_reads_yaml(scored: Scored) -> None:
    rules = {"expect": [{"key": ["a", 0, "b"], "method": "eq", "ref": 2}]}
    assert scored("check_json", rules, b"a:\n  - b: 2\n", is_yaml=True) == 1.0
    assert scored("check_json", rules, b"a:\n  - b: 2\n") == 0.0
    assert scored("check_json", rules, b"a: [", is_yaml=True) == 0.0
    anything = {"expect": [{"key": [], "method": "ne", "ref": None}]}
    assert scored("check_json", anything, b"x", is_yaml=True) == 1.0
    assert scored("check_json", anything, b"!!python/object/apply:os.getcwd []", is_yaml=True) == 0.0


@pytest.mark.parametrize(
    ("rules", "score"),
    [
        ([{"xpath": "//application[@name='Mail']/frame"}], 1.0),
        ([{"xpath": "//application[@name='Web']"}], 0.0),
        ([{"xpath": "/descendant::entry[not(@name = 'a:b (c') and (@name) and starts-with(@name, 'T')]/text()"}], 1.0),
        ([{"selectors": ["frame:first-child > entry:last-child:not([name=Cc])"]}], 1.0),
        ([{"xpath": "//frame[contains(@name, 'Inbox')]//push-button[@st:enabled='true']"}], 1.0),
        ([{"xpath": "//push-button[@st:enabled='false']"}], 0.0),
        ([{"selectors": ["application[name=Mail] push-button[attr|class~=send]"]}], 1.0),
        ([{"selectors": ["application[name=Web]", "application[name=Files]"]}], 1.0),
        ([{"selectors": ["application[name=Web]"]}], 0.0),
        ([{"xpath": "//application[@name='Web']", "selectors": ["application"]}], 0.0),
        ([{"xpath": "//entry", "text": "ann@example.org"}], 1.0),
        ([{"xpath": "//entry", "text": "ann@example.or", "exact": True}], 0.0),
        ([{"xpath": "//entry", "text": "ann@example.or", "exact": False}], 28 / 29),
        ([{"xpath": "//entry | //push-button", "text": "Send now"}], 1.0),
        ([{"xpath": "//entry", "text": "ann@example.org"}, {"xpath": "//menu"}], 0.0),
        ([{"xpath": "//entry/@name", "text": "To"}], 1.0),
        ([{"xpath": "//application[@name='Files']", "text": "x", "exact": False}], 0.0),
    ],
)
def test_check_accessibility_tree_takes_xpath_and_css(rules: Any, score: float, scored: Scored) -> None:
    assert scored("check_accessibility_tree", rules, TREE) == pytest.approx(score)


def test_the_namespaces_are_those_of_the_system(scored: Scored) -> None:
    windows = TREE.replace("ubuntu", "windows")
    rules = [{"xpath": "//push-button[@st:enabled='true']"}]
    assert scored("check_accessibility_tree", rules, windows) == 0.0
    assert scored("check_accessibility_tree", rules, windows, osname="windows") == 1.0


def test_a_tree_cannot_reach_out_of_itself(scored: Scored, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("Send now")
    reaching = f'<!DOCTYPE a [<!ENTITY x SYSTEM "file://{tmp_path}/secret">]><a><b>&x;</b></a>'
    assert scored("check_accessibility_tree", [{"xpath": "//b", "text": "Send now"}], reaching) == 0.0


@pytest.mark.parametrize(
    ("func", "rules", "result", "options", "score"),
    [
        ("exact_match", {"expected": "true\n"}, "true\n", {}, 1.0),
        ("exact_match", {"expected": "true"}, "true\n", {}, 0.0),
        ("literal_match", "Done", b"Done", {}, 1.0),
        ("literal_match", "Done", "done", {}, 0.0),
        ("literal_match", "Done", "done", {"ignore_case": True}, 1.0),
        ("literal_match", 12, "12", {"type": "str"}, 1.0),
        ("literal_match", ["A", 2], ["a", "2"], {"type": "list"}, 0.0),
        ("literal_match", ["A", 2], ["a", "2"], {"type": "list", "ignore_case": True}, 1.0),
        ("literal_match", ["a", "b"], ["a"], {"type": "list"}, 0.0),
        ("literal_match", ["a"], "a", {"type": "list"}, 0.0),
        ("is_in_list", {"expected": "ext"}, ["ext", "other"], {}, 1.0),
        ("is_in_list", {"expected": "ext"}, ["extension"], {}, 0.0),
        ("is_in_list", {"expected": "ext"}, "/home/user/ext\n", {}, 1.0),
        ("is_in_list", {"expected": "ext"}, b"other", {}, 0.0),
        ("check_include_exclude", {"exclude": ["error"]}, "all good", {}, 1.0),
        ("check_include_exclude", {"include": ["a"]}, ["a"], {}, 1.0),
        ("check_include_exclude", {"exclude": ["a"]}, None, {}, 0.0),
        ("fuzzy_match", {"expected": "abcd"}, "bd", {}, 2 / 3),
        ("is_expected_tabs", {"type": "url", "urls": ["a.org", "https://b.org/x"]}, ["https://www.b.org/x", "http://a.org/"], {}, 1.0),
        ("is_expected_tabs", {"type": "url", "urls": ["https://b.org/x"]}, ["https://b.org/y"], {}, 0.0),
        ("is_expected_tabs", {"type": "url", "urls": ["https://b.org"]}, ["https://b.org", "https://b.org"], {}, 0.0),
    ],
)  # fmt: skip
def test_rules_and_options_of_the_others(
    func: str, rules: Any, result: Any, options: dict[str, Any], score: float, scored: Scored
) -> None:
    result = [{"url": each} for each in result] if func == "is_expected_tabs" else result
    assert scored(func, rules, result, **options) == pytest.approx(score)


@pytest.mark.parametrize(
    ("func", "result", "found", "options", "score"),
    [
        ("compare_csv", b"a, b\r\n1,2\n", b"a, b\n1,2", {}, 1.0),
        ("compare_csv", b"a,b \n", b"a,b\n", {}, 0.0),
        ("compare_csv", b"a,b \n", b"a,b\n", {"strict": False}, 1.0),
        ("compare_csv", b"A,b\n", b"a,b\n", {"strict": False}, 0.0),
        ("compare_csv", b"A,b\n", b"a,b\n", {"ignore_case": True}, 1.0),
        ("compare_csv", b"a\n", [None, b"b\n", b"a\n"], {}, 1.0),
        ("compare_text_file", b"A\n\nb", b"a\nB\n", {"ignore_case": True, "ignore_blanks": True}, 1.0),
        ("compare_text_file", b"a\n b", b"a b", {}, 0.0),
        ("compare_text_file", b"a\r\nb", b"a\nb", {}, 1.0),
        ("compare_text_file", b"", b"a", {}, 0.0),
    ],
)
def test_files_are_compared_by_their_options(
    func: str, result: Any, found: Any, options: dict[str, Any], score: float, scored: Scored
) -> None:
    assert scored(func, None, result, found, **options) == score


RULE = {"type": "rule", "rules": {"expected": "x"}}
FILE = {"type": "vm_file", "path": "/x", "dest": "x"}
BAD: list[tuple[dict[str, Any], str]] = [
    ({"func": "compare_docx_files"}, "evaluator.func: there is no metric 'compare_docx_files' for it; there are check_acc"),
    ({"func": "exact_match", "metric": 1}, "evaluator.metric: is not supported"),
    ({"func": []}, "evaluator.func: names no metric"),
    ({"result": None}, "evaluator.result: exact_match has no result"),
    ({"expected": {}}, "evaluator.expected: exact_match has nothing to compare with"),
    ({"result": RULE}, "evaluator.result: there is no getter 'rule'"),
    ({"result": {"type": "vm_command_line"}}, "evaluator.result.command: is missing"),
    ({"result": {**FILE, "encoding": "x"}}, "evaluator.result.encoding: is not supported"),
    ({"result": {**FILE, "path": ["/x"]}}, "path is a list exactly if multi is true"),
    ({"result": {**FILE, "path": ["/x"], "multi": True, "gives": [1]}}, "gives counts the files of path"),
    ({"result": {**FILE, "path": ["/x", "/y"], "multi": True, "gives": [0, 1]}}, "evaluator.result.gives: exact_match"),
    ({"expected": FILE}, "evaluator.expected: there is no getter 'vm_file' for it; there are rule"),
    ({"expected": {"type": "rule"}}, "evaluator.expected.rules: is missing"),
    ({"expected": {"type": "rule", "rules": {"expect": 1}}}, "evaluator.expected.rules.expected: is missing"),
    ({"options": {"strip": True}}, "evaluator.options.strip: is not supported"),
    ({"func": "literal_match", "expected": RULE}, "evaluator.expected.rules: is a dict, and options.type is 'str'"),
    ({"func": "literal_match", "expected": {"type": "rule", "rules": "a"}, "options": {"type": "list"}}, "is a str, and"),
    ({"func": "literal_match", "expected": {"type": "rule", "rules": 1}, "options": {"type": "int"}}, "options.type: "),
    ({"func": "compare_csv", "expected": FILE, "options": {"delimiter": ";"}}, "evaluator.options.delimiter: is not"),
    ({"func": "compare_text_file", "expected": {**FILE, "path": ["/x", "/y"], "multi": True, "gives": [0, 1]}}, "expected.gives"),
    ({"config": [{"type": "download", "parameters": {"files": [{"url": "u"}]}}]}, "config.0.parameters.files.0.path: is missing"),
    ({"config": [{"type": "execute", "parameters": {}}]}, "config.0.parameters.command: is missing"),
    ({"config": [{"type": "execute", "parameters": {"command": ["x"], "until": {"status": 0}}}]}, "until.status: is not"),
    ({"config": [{"type": "execute", "parameters": {"command": ["x"], "stdout": "f"}}]}, "parameters.stdout: is not"),
    ({"config": [{"type": "sleep", "parameters": {"seconds": 500}}]}, "config.0.parameters.seconds: "),
    ({"config": [{"type": "command", "parameters": {"command": "echo {CLIENT_PASSWORD}"}}]}, "set GUI_CLIENT_PASSWORD"),
    ({"config": [{"type": "command", "parameters": {"command": ["{SCREEN_DEPTH}"]}}]}, "{SCREEN_DEPTH} is unknown; there are"),
    ({"config": [{"type": "launch", "parameters": {"command": ["{SCREEN_WIDTH}"]}}]}, "in the steps execute and command alone"),
    ({"result": {"type": "vm_command_line", "command": "{CLIENT_PASSWORD}"}}, "in the steps execute and command alone"),
]  # fmt: skip
BAD_RULES: list[tuple[str, Any, str]] = [
    ("check_json", {}, "rules: write expect, unexpect, or both"),
    ("check_json", {"expect": [{"key": ["a"], "value": 1}]}, "rules.expect.0.method: is missing"),
    ("check_json", {"expect": [{**SMART, "method": "exists"}]}, "rules.expect.0: the method 'exists' is not supported"),
    ("check_json", {"expect": [{**SMART, "method": "spreadsheet_range"}]}, "'spreadsheet_range' is not supported"),
    ("check_json", {"expect": [{**SMART, "method": "range.xx"}]}, "'range.xx' is not supported"),
    (
        "check_json",
        {"unexpect": [{**SMART, "method": "range.te", "ref": 1}]},
        "rules.unexpect.0: the method range needs",
    ),
    ("check_json", {"expect": [{**SMART, "method": "approx:x", "ref": 1}]}, "'x' is not a number"),
    ("check_json", {"expect": [{**SMART, "method": "re.Q"}]}, "re has no flag 'Q'"),
    ("check_json", {"expect": [{**SMART, "ref": "("}]}, "is not a regular expression"),
    ("check_json", {"expect": [{**SMART, "method": "str_set_eq"}]}, "needs a list as ref"),
    ("check_json", {"expect": [{**SMART, "note": 1}]}, "rules.expect.0.note: is not supported"),
    ("check_accessibility_tree", {"xpath": "//a"}, "rules: "),
    ("check_accessibility_tree", [], "rules: "),
    ("check_accessibility_tree", [{"text": "a"}], "rules.0: write xpath or selectors"),
    ("check_accessibility_tree", [{"xpath": "//a["}], "cannot be evaluated"),
    ("check_accessibility_tree", [{"xpath": "//a[@x:b]"}], "cannot be evaluated"),
    ("check_accessibility_tree", [{"xpath": "//a[ends-with(@b, 'c')]"}], "there is no function 'ends-with'"),
    ("check_accessibility_tree", [{"selectors": ["a[x|b]"]}], "there is no prefix 'x'"),
    ("check_accessibility_tree", [{"xpath": "count(//a)"}], "finds no elements"),
    ("check_accessibility_tree", [{"selectors": ["a[["]}], "cannot be evaluated"),
    ("check_accessibility_tree", [{"xpath": "//a", "namespaces": {}}], "rules.0.namespaces: is not supported"),
    ("check_include_exclude", {}, "write include, exclude, or both"),
    ("check_include_exclude", {"include": "a"}, "rules.include: "),
    ("match_in_list", {"expected": "ab"}, "rules.expected: "),
    ("file_contains", {"expected": "ab"}, "rules.expected: "),
    ("check_regex", {"pattern": "("}, "is not a regular expression"),
    ("is_expected_tabs", {"type": "domain", "urls": []}, "rules.type: "),
    ("fuzzy_match", {"expected": 1}, "rules.expected: "),
]


@pytest.mark.parametrize(
    ("fields", "why"),
    [*BAD, *(({"func": func, "expected": {"type": "rule", "rules": rules}}, why) for func, rules, why in BAD_RULES)],
)
def test_what_is_not_supported_is_refused_with_its_key(fields: dict[str, Any], why: str, tmp_path: Path) -> None:
    path = written(tmp_path, **{"func": "exact_match", "result": FILE, "expected": RULE, **fields})
    with pytest.raises(UnsupportedTask) as refused:
        read_task(path, password=False)
    assert str(refused.value).startswith(f"{path}: ")
    assert why in str(refused.value)


def test_every_key_that_osworld_documents_is_taken(tmp_path: Path) -> None:
    config = [
        {
            "type": "download",
            "parameters": {"files": [{"url": "https://example.org/a.txt", "path": "/home/user/a.txt"}]},
        },
        {"type": "upload_file", "parameters": {"files": [{"local_path": "files/a.txt", "path": "/home/user/a.txt"}]}},
        {"type": "execute", "parameters": {"command": "echo {CLIENT_PASSWORD} | sudo -S true", "shell": True}},
        {"type": "command", "parameters": {"command": ["ls"], "until": {"returncode": 0, "stdout": "a", "stderr": ""}}},
        {"type": "command", "parameters": {"command": ["echo", "${HOME} {SCREEN_HEIGHT_HALF}"], "until": {}}},
        {"type": "launch", "parameters": {"command": "code ~/a", "shell": True}},
        {"type": "open", "parameters": {"path": "/home/user/a.txt"}},
        {"type": "activate_window", "parameters": {"window_name": "Mail", "strict": True, "by_class": True}},
        {"type": "close_window", "parameters": {"window_name": "Mail"}},
        {"type": "change_wallpaper", "parameters": {"path": "/home/user/a.png"}},
        {"type": "sleep", "parameters": {"seconds": 2}},
    ]
    several = {
        "path": ["https://example.org/1", "https://example.org/2"],
        "dest": ["1", "2"],
        "multi": True,
        "gives": [1],
    }
    evaluator = {
        "func": ["compare_csv", "literal_match"],
        "conj": "or",
        "result": [{**FILE, "time_suffix": True, "time_format": "%Y"}, {"type": "vm_command_line", "command": "date", "shell": True}],
        "expected": [{"type": "cloud_file", **several}, {"type": "vm_command_line", "command": ["date"]}],
        "options": [{"strict": False, "ignore_case": True}, {}],
        "postconfig": [config[-1]],
    }  # fmt: skip
    task = read_task(written(tmp_path, config=config, **evaluator), password=True)
    assert len(task.config) == len(config)
    assert File.model_validate(several).given == ["https://example.org/2"]
    assert [check.metric for check in checks_of(task.evaluator)] == ["compare_csv", "literal_match"]


def test_a_command_is_repeated_until_one_of_its_conditions_holds() -> None:
    assert Until().met(3, "", "")
    assert Until(returncode=0).met(0, "", "")
    assert not Until(returncode=0).met(1, "", "")
    assert Until(returncode=0, stdout="up").met(1, "is up", "")
    assert not Until(stdout="up", stderr="down").met(0, "", "up")


def test_placeholders_are_filled() -> None:
    supplies = Supplies(Files(None), "it's")
    assert supplies.filled(["{CLIENT_PASSWORD}", "{SCREEN_WIDTH}x{SCREEN_HEIGHT}"], (1921, 1080)) == [
        "it's",
        "1921x1080",
    ]
    assert supplies.filled("{SCREEN_WIDTH_HALF},{SCREEN_HEIGHT_HALF} ${HOME}", (1921, 1080)) == "960,540 ${HOME}"
    assert "it's" not in repr(supplies)
    assert supplies.hidden("sudo: it's wrong") == "sudo: *** wrong"
