"""What COPY reads is what was written, whatever stands in texts."""

import asyncio
import json
from datetime import UTC, datetime
from typing import Any

import asyncpg
import hypothesis.strategies as st
import msgspec
import pytest
from hypothesis import HealthCheck, Phase, given, settings

from services.projector.copy_text import OPTIONS, copy_text

EDGES = (
    "",
    "null",
    "NULL",
    r"\.",
    "\n\\.\n",
    r"\N",
    r"a\nb \\n \u001b",
    "a\nb\r\nc\rd\te\ff\bg\x0b",
    "\x01\x1b[31m\x1f\x7f",
    'say "so", {"it": "\\n"}',
    '"',
    "\\",
    '\\"',
    "]\n[",
    "],[",
    "{a,b}",
    " blank ",
    "ü\u2028\U0001f600",
)


class Row(msgspec.Struct):
    number: int
    at: datetime
    text: str
    maybe: str | None
    flag: bool
    texts: tuple[str, ...]
    numbers: tuple[int, ...]


async def through_postgres(url: str, rows: list[Row]) -> list[dict[str, Any]]:
    connection = await asyncpg.connect(url)
    try:
        await connection.execute(
            "CREATE TEMPORARY TABLE rows (number bigint, at timestamptz, text text NOT NULL, maybe text, flag boolean, "
            "texts text[], numbers bigint[])"
        )
        await connection.copy_to_table("rows", source=memoryview(copy_text(rows, arrays=(5, 6))), **OPTIONS)
        return [dict(record) for record in await connection.fetch("SELECT * FROM rows")]
    finally:
        await connection.close()


def plain(row: Row) -> dict[str, Any]:
    return {
        name: list(value) if isinstance(value, tuple) else value for name, value in msgspec.structs.asdict(row).items()
    }


def row_of(text: str, number: int = 0) -> Row:
    at = datetime(2026, 11, 27, 1, 2, 3, 4, UTC)
    return Row(number, at, text, text, number % 2 == 0, (text, "", text), (number, -number))


@pytest.mark.anyio
async def test_texts_at_the_edge_come_back_as_they_were(postgres_database: str) -> None:
    rows = [row_of(text, number) for number, text in enumerate(EDGES)]
    rows.append(msgspec.structs.replace(rows[0], number=2**63 - 1, maybe=None, texts=(), numbers=()))
    assert await through_postgres(postgres_database, rows) == [plain(row) for row in rows]


@settings(
    max_examples=4,
    deadline=None,
    phases=(Phase.generate,),
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
@given(
    texts=st.lists(
        st.text(
            st.one_of(st.sampled_from('\\"\nbfnrtu01[]{},. '), st.characters(codec="utf-8", exclude_characters="\x00"))
        ),
        min_size=40,
        max_size=80,
    )
)
def test_any_texts_come_back_as_they_were(postgres_database: str, texts: list[str]) -> None:
    rows = [row_of(text) for text in texts]
    assert asyncio.run(through_postgres(postgres_database, rows)) == [plain(row) for row in rows]


def test_only_rows_with_controls_are_looked_at_escape_by_escape(monkeypatch: pytest.MonkeyPatch) -> None:
    """A thousand specs of 100 KB took half a minute, in which the transaction that they are written in was ended."""
    looked_at: list[bytes] = []

    class Escaped:
        @staticmethod
        def sub(_: object, line: bytes) -> bytes:
            looked_at.append(line)
            return line

    monkeypatch.setattr("services.projector.copy_text._ESCAPED", Escaped)
    spec = json.dumps({"args": 'say "so"\n', "path": "a\\", "list": ["\\"]})
    copy_text([row_of(spec), row_of("\\"), row_of('\\"'), row_of("a\nb", 7), row_of('"')], arrays=(5, 6))
    assert [line[:2] for line in looked_at] == [b"7,"]
