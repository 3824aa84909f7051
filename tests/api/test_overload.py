"""More lists at once than the API has connections: each is answered, or told to come again, and none with 500."""

import asyncio
from concurrent.futures import ThreadPoolExecutor

import asyncpg
import httpx

from tests.support.api import Served

AT_ONCE = 150
LISTS = "/api/v1/workloads"


def asked(client: httpx.Client) -> list[httpx.Response]:
    with ThreadPoolExecutor(AT_ONCE) as pool:
        return list(pool.map(lambda _: client.get(LISTS), range(AT_ONCE)))


def with_the_table_locked(served: Served, client: httpx.Client) -> list[httpx.Response]:
    """The lists that have a connection wait for the lock, so all others surely find none."""

    async def locked() -> list[httpx.Response]:
        holder = await asyncpg.connect(served.settings.postgres_url)
        try:
            async with holder.transaction():
                schema = await holder.fetchval("SELECT schema_name FROM muster.current_projection")
                await holder.execute(f'LOCK TABLE "{schema}".workloads IN ACCESS EXCLUSIVE MODE')
                return await asyncio.to_thread(asked, client)
        finally:
            await holder.close()

    return asyncio.run(locked())


def test_lists_that_find_no_connection_are_told_to_come_again(served: Served) -> None:
    limits = httpx.Limits(max_connections=AT_ONCE)
    with served.client(limits=limits) as client:
        answers = with_the_table_locked(served, client)
        codes = {answer.status_code for answer in answers}
        assert codes == {503}, {answer.text for answer in answers if answer.status_code != 503}
        assert {answer.json()["details"] for answer in answers} == {"lists_busy", "query_timeout"}
        assert all(int(answer.headers["Retry-After"]) > 0 for answer in answers)
        assert {answer.status_code for answer in asked(client)} <= {200, 503}
        assert client.get(LISTS).status_code == 200
