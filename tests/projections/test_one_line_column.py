"""One line makes a column: it is stored, filtered, sorted, listed, described, exported and shown by that alone."""

import json
import os
import subprocess
import sys
from typing import Any

LINE = '    colour: Annotated[str, Public("colour", "COLOUR", "What it looks like.", "always", 9)] = "blue"\n'
BEFORE = "    version: Annotated["
"""The line goes in front of the last column of a workload's row."""

SEEN = """
import asyncio, importlib.abc, importlib.machinery, json, os, sys

class Loader(importlib.machinery.SourceFileLoader):
    def get_data(self, path):
        data = super().get_data(path)
        if not path.endswith(".py"):
            raise OSError("compiled without the line")
        assert data.count(BEFORE) == 1, path
        return data.replace(BEFORE, LINE + BEFORE)

class Finder(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name != "projections.workloads.rows":
            return None
        found = importlib.machinery.PathFinder.find_spec(name, path)
        found.loader = Loader(name, found.origin)
        return found

LINE, BEFORE = os.environ["LINE"].encode(), os.environ["BEFORE"].encode()
sys.dont_write_bytecode = True
sys.meta_path.insert(0, Finder())

from muster.cli.output import Format, Output, Style
from muster.cli.workload_columns import workload_columns
from projections.filters import Filter, WorkloadQuery
from projections.migrate import prepare
from projections.queries import Queries
from projections.row_json import row_to_json
from services.api.application import OPERATIONS
from services.api.export import _columns, csv_line
from services.api.openapi import document
from services.projector.engine import Engine, open_pool
from services.projector.writer import Writer
from services.runtime.log.memory import MemoryEventStore
from tests.projections.small_world import WORLD

async def main(url):
    await prepare(url)
    pool = await open_pool(url)
    writer = Writer(pool, "muster_v1")
    engine = Engine(MemoryEventStore(), writer, await writer.checkpoint())
    await engine.apply(WORLD.commits)
    await engine.flush()
    await pool.execute("UPDATE muster_v1.workloads SET colour = 'amber' WHERE name = 'beta'")
    await pool.close()
    queries = Queries(url).within(None)
    async def found(**query):
        return [row_to_json(row) for row in (await queries.workloads(WorkloadQuery(projects=None, **query))).rows]
    filtered = await found(filters=(Filter(field="colour", op="==", value="amber"),))
    rows = await found(sort_by="colour", descending=False)
    await queries.close()
    shown = Output(Style(format=Format.CSV, columns=("name", "colour")))
    names = [column.header for column in Output(Style()).chosen(workload_columns())]
    wanted = _columns("name, colour")
    lines = [csv_line(wanted), csv_line([rows[0][name] for name in wanted])]
    exported = [line.decode().strip().split(",") for line in lines]
    schema = document(OPERATIONS)["components"]["schemas"]["WorkloadRow"]["properties"]["colour"]
    print(json.dumps({
        "filtered": [row["name"] for row in filtered],
        "sorted": [[row["name"], row["colour"]] for row in rows],
        "schema": schema,
        "exported": exported,
        "headings": names,
    }))
    shown.rows(rows[:1], workload_columns())

asyncio.run(main(sys.argv[1]))
"""


def test_a_column_is_one_line(postgres_database: str) -> None:
    ran = subprocess.run(
        [sys.executable, "-c", SEEN, postgres_database],
        env={**os.environ, "LINE": LINE, "BEFORE": BEFORE},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    told, *csv = ran.stdout.splitlines()
    seen: dict[str, Any] = json.loads(told)
    assert seen["filtered"] == ["beta"]
    assert seen["sorted"] == [["beta", "amber"], ["alpha", "blue"], ["gamma_50%", "blue"]]
    assert seen["schema"] == {"type": "string", "description": "What it looks like."}
    assert seen["headings"][-2:] == ["WHY", "COLOUR"]
    assert seen["exported"] == [["name", "colour"], ["beta", "amber"]]
    assert csv == ["name,colour", "beta,amber"]
