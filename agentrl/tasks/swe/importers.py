"""Rows of published data sets as rows of this project: SWE-bench Verified and Lite, SWE-Gym, and SWE-smith, from files on this machine.

A file is ``.jsonl``, ``.json`` (a list) or ``.parquet``; of a folder all such files are read, and below it SWE-smith's folders with ``patch.diff`` and
``report.json``. Guarantees: nothing is downloaded. A row that cannot be graded here is left out, with its reason.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from agentrl.tasks.links import unlinked
from agentrl.tasks.swe.diffs import reversed_diff
from agentrl.tasks.swe.instance import FRAMEWORKS, PYTEST_PARSERS, Instance, instance_of
from groundwork.data_rows import json_objects, read_json, read_text
from groundwork.exceptions import ConfigError

Raw = Mapping[str, Any]
TEST_COMMAND = re.compile(
    r"^: '>>>>> Start Test Output'$\n(.*?)\n^(?:\w+=\$\?\n)?: '>>>>> End Test Output'$", re.MULTILINE | re.DOTALL
)
PARSERS = MappingProxyType(
    {
        "astropy/astropy": "parse_log_astropy",
        "django/django": "parse_log_django",
        "matplotlib/matplotlib": "parse_log_matplotlib",
        "mwaskom/seaborn": "parse_log_seaborn",
        "psf/requests": "parse_log_requests",
        "pydicom/pydicom": "parse_log_pydicom",
        "pylint-dev/pylint": "parse_log_pylint",
        "scikit-learn/scikit-learn": "parse_log_scikit",
        "sphinx-doc/sphinx": "parse_log_sphinx",
        "sympy/sympy": "parse_log_sympy",
    }
)
"""Of repositories whose logs swebench does not read as plain ones of pytest, where a row does not say it."""
PLAIN = tuple(
    f"parse_log_{name}"
    for name in ("pytest", "astroid", "flask", "marshmallow", "pvlib", "pyvista", "sqlfluff", "xarray")
)
"""Names of swebench's plain parser of pytest's logs; `agentrl.tasks.swe.logs` reads the same ids."""


def read_raw(place: Path) -> Iterator[Raw]:
    """Yield the rows of a file or a folder.

    Raises:
        ConfigError: it cannot be read.
    """
    if place.is_dir():
        files = sorted(path for ending in ("*.jsonl", "*.json", "*.parquet") for path in place.glob(ending))
        reports = sorted(place.rglob("report.json"))
        if not files and not reports:
            raise ConfigError(
                f"{place} has neither rows (*.jsonl, *.json, *.parquet) nor folders with patch.diff; name another"
            )
        for file in files:
            yield from read_raw(unlinked(place, file))
        for report in reports:
            yield _of_folder(unlinked(place, report).parent)
        return
    try:
        if place.suffix == ".parquet":
            import pandas  # of the extra train; only this format needs it

            for record in pandas.read_parquet(place).to_dict("records"):
                yield {str(name): value for name, value in record.items()}
        elif place.suffix == ".json":
            rows = read_json(read_text(place))
            if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
                raise ValueError("a .json file holds a list of rows")
            yield from rows
        else:
            yield from (row for _, row in json_objects(place))
    except (OSError, ValueError) as error:
        raise ConfigError(f"{place} cannot be read as rows: {error}; name a file of JSON lines") from error


def of_swe_bench(raw: Raw, benchmark: str) -> dict[str, Any]:
    """Return the row of SWE-bench's columns.

    Raises:
        ConfigError: its tests cannot be run here.
    """
    name = str(raw.get("instance_id", "?"))
    parser = str(raw.get("log_parser") or PARSERS.get(str(raw.get("repo")), "pytest"))
    row = {**raw, "log_parser": parser, "benchmark": benchmark}
    if raw.get("eval_type") not in (None, "", "pass_and_fail"):
        raise ConfigError(
            f"{name}: its log has failures only (eval_type {raw['eval_type']}), which proves no test passed"
        )
    if parser in (*FRAMEWORKS, *PLAIN, *PYTEST_PARSERS):
        row |= {"log_parser": "pytest" if parser in PLAIN else parser, "test_cmd": None}
    elif not raw.get("test_cmd"):
        match = TEST_COMMAND.search(str(raw.get("eval_script", "")))
        if match is None:
            raise ConfigError(
                f"{name}: it has neither test_cmd nor an eval_script with markers, and its tests are not pytest's"
            )
        row["test_cmd"] = match[1]
    return row


def of_swe_gym(raw: Raw, benchmark: str) -> dict[str, Any]:
    """Return the row of SWE-Gym's columns, which are those of SWE-bench."""
    image = f"xingyaoww/sweb.eval.x86_64.{raw.get('instance_id', '')}:latest".replace("__", "_s_").lower()
    return {"image_name": image, **of_swe_bench(raw, benchmark)}


def of_verified(raw: Raw, benchmark: str) -> dict[str, Any]:
    """Return the row of SWE-bench's columns, with the name of its image."""
    image = f"swebench/sweb.eval.x86_64.{raw.get('instance_id', '')}:latest".replace("__", "_1776_").lower()
    return {"image_name": image, **of_swe_bench(raw, benchmark)}


def of_swe_smith(raw: Raw, benchmark: str) -> dict[str, Any]:
    """Return the row of SWE-smith's columns: ``patch`` brings the mistake, and the commit is in the repository's name.

    Raises:
        ConfigError: the name of the repository says no commit.
    """
    name = str(raw.get("instance_id", "?"))
    match = re.fullmatch(
        r"(?:[\w.-]+/)?([\w.-]+?)__([\w.-]+)\.([0-9a-f]{7,40})", str(raw.get("repo") or _repo_in(name))
    )
    if match is None:
        raise ConfigError(f"{name}: repo {raw.get('repo')} is not OWNER__NAME.COMMIT, as SWE-smith's are")
    bug = str(raw.get("patch") or "")
    return {
        **raw,
        "repo": f"{match[1]}/{match[2]}",
        "base_commit": match[3],
        "bug_patch": bug,
        "patch": reversed_diff(bug),
        "test_patch": "",
        "log_parser": "pytest",
        "test_cmd": None,
        "benchmark": benchmark,
    }


IMPORTERS: Mapping[str, Callable[[Raw, str], dict[str, Any]]] = MappingProxyType(
    {
        "swe-bench-lite": of_verified,
        "swe-bench-verified": of_verified,
        "swe-gym": of_swe_gym,
        "swe-smith": of_swe_smith,
    }
)


def imported(benchmark: str, place: Path) -> tuple[list[Instance], list[str]]:
    """Return the instances of a data set, and why rows were left out.

    Args:
        benchmark: one of `IMPORTERS`.
        place: file or folder of its rows.

    Raises:
        ConfigError: the file cannot be read, or two rows have the same id.
    """
    instances: dict[str, Instance] = {}
    left_out: list[str] = []
    for raw in read_raw(place):
        try:
            instance = instance_of(_plain(IMPORTERS[benchmark](raw, benchmark)))
        except ConfigError as error:
            left_out.append(str(error))
            continue
        if instance.id in instances:
            raise ConfigError(f"{place}: {instance.id} is there twice; remove one of them")
        instances[instance.id] = instance
    return list(instances.values()), left_out


def _of_folder(folder: Path) -> Raw:
    """Return the row of one of SWE-smith's folders; a statement is in ``problem_statement.md`` or in ``metadata.json``.

    Raises:
        ConfigError: a file cannot be read, or is a link.
    """
    names = ("report.json", "metadata.json", "problem_statement.md", "patch.diff")
    reported, metadata, statement, patch = (unlinked(folder, folder / name) for name in names)
    try:
        report: Any = read_json(read_text(reported))
        row: Any = read_json(read_text(metadata)) if metadata.is_file() else {}
        if not isinstance(report, dict) or not isinstance(row, dict):
            raise ValueError("report.json and metadata.json are objects")
        if statement.is_file():
            row["problem_statement"] = read_text(statement)
        row |= {"instance_id": folder.name, "patch": read_text(patch) if patch.is_file() else ""}
    except (OSError, ValueError) as error:
        raise ConfigError(f"{folder} cannot be read as an instance: {error}; remove it, or correct the file") from error
    return row | {name: report.get(name, []) for name in ("FAIL_TO_PASS", "PASS_TO_PASS")}


def _repo_in(name: str) -> str:
    """Return the repository that the id of an instance of SWE-smith begins with."""
    return ".".join(name.split(".")[:-1])


def _plain(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return a row with lists in place of the arrays of pandas, and without its missing values."""
    lists = {name: value.tolist() if hasattr(value, "tolist") else value for name, value in row.items()}
    return {name: value for name, value in lists.items() if isinstance(value, list) or value == value}
