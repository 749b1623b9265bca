"""SQL on the task's tables, in SQLite in a sandbox of its own, where nothing else of the agent's runs.

Guarantees: a statement sees the task's tables only. It cannot open another file, change settings or load code; what it may use of time and
memory is the sandbox's. The state in the end is read by a program of ours.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from agentrl.exceptions import InfraError, InvalidError
from agentrl.protocol import JsonObject
from agentrl.sandbox.interface import Sandbox
from agentrl.tasks.toolcall.draft import Tables
from agentrl.tasks.toolcall.tools.interface import Room, World, parameters

STATEMENT_SECONDS = 10.0
MAX_OUTPUT = 8192
MAX_STATE = 1 << 20
# Reads a request from stdin: {"do": "make" | "run" | "dump", "tables" | "statement"}.
PROGRAM = r"""
import json, os, sqlite3, sys
request = json.load(sys.stdin)
database = sqlite3.connect("/work/tables.sqlite", isolation_level=None)
quoted = lambda name: '"' + name.replace('"', '""') + '"'
if request["do"] == "make":
    for name, rows in request["tables"].items():
        columns = list(rows[0]) if rows else ["empty"]
        database.execute("CREATE TABLE %s (%s)" % (quoted(name), ", ".join(map(quoted, columns))))
        database.executemany(
            "INSERT INTO %s VALUES (%s)" % (quoted(name), ", ".join("?" * len(columns))),
            [[row[column] for column in columns] for row in rows],
        )
elif request["do"] == "dump":
    database.row_factory = sqlite3.Row
    names = [row[0] for row in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
    print(json.dumps({name: [dict(row) for row in database.execute("SELECT * FROM " + quoted(name))] for name in names}))
else:
    refused = (sqlite3.SQLITE_ATTACH, sqlite3.SQLITE_DETACH, sqlite3.SQLITE_PRAGMA)
    deny = lambda what, one, two, *_: sqlite3.SQLITE_DENY if what in refused or two == "load_extension" else sqlite3.SQLITE_OK
    database.set_authorizer(deny)
    try:
        cursor = database.execute(request["statement"])
        if cursor.description is None:
            print("ok, rows changed: %d" % max(cursor.rowcount, 0))
        else:
            print("\t".join(column[0] for column in cursor.description))
            for number, row in enumerate(cursor):
                if number == 50:
                    print("[more rows are left out]")
                    break
                print("\t".join("NULL" if cell is None else str(cell) for cell in row))
    except (sqlite3.Error, sqlite3.Warning) as error:
        print("error: %s" % error)
        sys.exit(9)
"""
WRONG = 9


class Sql:
    """The tool ``sql``."""

    name = "sql"
    description = "Run one SQL statement of SQLite on the tables."
    parameters = parameters({"statement": ("string", "one SQL statement")})
    room: Room = "sql"

    async def call(self, arguments: JsonObject, world: World) -> str:
        """See `agentrl.tasks.toolcall.tools.interface.Tool`."""
        fresh = "sql" not in world.rooms
        sandbox = await world.sandbox("sql")
        if fresh:
            await _program(sandbox, {"do": "make", "tables": {name: [*rows] for name, rows in world.tables.items()}})
        return await _program(sandbox, {"do": "run", "statement": arguments["statement"]})


async def tables_of(world: World) -> Tables | None:
    """Return the tables as they are now; None if the agent left them in a state that cannot be read."""
    if "sql" not in world.rooms:
        return world.tables
    try:
        return json.loads(await _program(world.rooms["sql"], {"do": "dump"}, MAX_STATE))
    except (InvalidError, json.JSONDecodeError):
        return None


async def _program(sandbox: Sandbox, request: Mapping[str, Any], most: int = MAX_OUTPUT) -> str:
    """Run the program; return what it printed.

    Raises:
        InvalidError: the statement is wrong, or took too long.
        InfraError: the sandbox failed.
    """
    result = await sandbox.execute(
        ["/usr/bin/python3", "-I", "-c", PROGRAM],
        timeout_s=STATEMENT_SECONDS,
        stdin=json.dumps(request).encode(),
        most_output=most,
    )
    text = result.output.decode(errors="replace").removesuffix("\n")
    if result.timed_out:
        raise InvalidError(f"the statement took more than {STATEMENT_SECONDS:g} s; write a faster one", code="too_slow")
    if result.exit_code == WRONG:
        raise InvalidError(text.removeprefix("error: "), code="bad_statement")
    if result.exit_code != 0:
        if request["do"] == "make":
            raise InfraError(f"the tables were not made: {text[-300:]}", code="tool_failed")
        raise InvalidError(f"the statement was ended: {text[-300:]}", code="bad_statement")
    return text
