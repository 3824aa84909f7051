"""More lists at once than the API has connections: each is answered, or told to come again, and none with 500. And one
who asks for many keeps no other waiting.
"""

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

import asyncpg
import httpx

from projections.queries import EACH
from tests.support.api import Served

AT_ONCE = 150
MANY = httpx.Limits(max_connections=AT_ONCE)
LISTS = "/api/v1/workloads"
OTHER_LIST = "/api/v1/nodes"
READERS = ("admin", "alice", "bob", "vic", "stranger")
"""More than there are connections for, each with a share."""


def asked(clients: Sequence[httpx.Client]) -> list[httpx.Response]:
    with ThreadPoolExecutor(AT_ONCE) as pool:
        return list(pool.map(lambda number: clients[number % len(clients)].get(LISTS), range(AT_ONCE)))


def with_the_table_locked[T](served: Served, act: Callable[[], T]) -> T:
    """The lists that have a connection wait for the lock, so all others surely find none."""

    async def locked() -> T:
        holder = await asyncpg.connect(served.settings.postgres_url)
        try:
            async with holder.transaction():
                schema = await holder.fetchval("SELECT schema_name FROM muster.current_projection")
                await holder.execute(f'LOCK TABLE "{schema}".workloads IN ACCESS EXCLUSIVE MODE')
                return await asyncio.to_thread(act)
        finally:
            await holder.close()

    return asyncio.run(locked())


def test_lists_that_find_no_connection_are_told_to_come_again(served: Served) -> None:
    clients = [served.client(reader, limits=MANY) for reader in READERS]
    answers = with_the_table_locked(served, lambda: asked(clients))
    codes = {answer.status_code for answer in answers}
    assert codes == {503}, {answer.text for answer in answers if answer.status_code != 503}
    assert {answer.json()["details"] for answer in answers} == {"lists_busy", "query_timeout"}
    assert all(int(answer.headers["Retry-After"]) > 0 for answer in answers)
    assert {answer.status_code for answer in asked(clients)} <= {200, 503}
    for client in clients:
        assert client.get(LISTS).status_code == 200
        client.close()


def test_who_asks_for_many_lists_has_a_share_of_the_connections_and_keeps_nobody_waiting(served: Served) -> None:
    with served.client("alice", limits=MANY) as greedy, served.client("bob") as other:

        def act() -> tuple[list[httpx.Response], list[httpx.Response]]:
            with ThreadPoolExecutor(1) as beside:
                flood = beside.submit(asked, [greedy])
                seen: list[httpx.Response] = []
                while not flood.done():
                    seen.append(other.get(OTHER_LIST))
                return flood.result(), seen

        flood, seen = with_the_table_locked(served, act)
    assert {answer.status_code for answer in seen} == {200}, {answer.text for answer in seen if answer.is_error}
    told = {(answer.status_code, answer.json()["details"]) for answer in flood}
    assert told == {(503, "lists_busy"), (503, "query_timeout")}
    busy = next(answer.json() for answer in flood if answer.json()["details"] == "lists_busy")
    assert busy["message"] == f"{EACH} lists of yours are being read already; wait for one of them"
