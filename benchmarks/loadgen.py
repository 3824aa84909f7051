"""A lean HTTP load generator: keep-alive connections, prepared bodies, only status and length parsed under way.

Runs as a process of its own, so that its cost is seen as what it is: another user of the two cores.
Usage: python -m benchmarks.loadgen '{"port": 8080, "token": "…", …}'; prints one JSON line.
"""

import asyncio
import json
import math
import sys
import time
from collections import Counter
from typing import Any, NamedTuple

import uvloop


class Answer(NamedTuple):
    status: int
    seconds: float
    name: str
    """Of the workload."""
    body: bytes


class Client:
    """One connection; one request at a time."""

    def __init__(self, plan: dict[str, Any], number: int) -> None:
        self.plan = plan
        self.number = number
        self.sent = 0

    async def connect(self) -> None:
        self.reader, self.writer = await asyncio.open_connection("127.0.0.1", self.plan["port"])

    async def post(self) -> "Answer":
        """One submit."""
        self.sent += 1
        name = f"{self.plan['prefix']}-{self.number}-{self.sent}"
        body = self.plan["body"].replace("@NAME@", name).encode()
        head = (
            f"POST /api/v1/workloads/trainings HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
            f"Authorization: Bearer {self.plan['token']}\r\nContent-Length: {len(body)}\r\n\r\n"
        )
        started = time.perf_counter()
        self.writer.write(head.encode() + body)
        headers = await self.reader.readuntil(b"\r\n\r\n")
        length = int(headers.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
        body = await self.reader.readexactly(length)
        return Answer(int(headers[9:12]), time.perf_counter() - started, name, body)

    def close(self) -> None:
        self.writer.close()


async def flood(plan: dict[str, Any]) -> list[Answer]:
    """Every client sends its next request as soon as the last is answered, until the time is over, or all are sent."""
    results: list[Answer] = []
    until = time.perf_counter() + plan["seconds"]

    left = plan.get("count", math.inf)

    async def run(number: int) -> None:
        nonlocal left
        client = Client(plan, number)
        await client.connect()
        while left > 0 and time.perf_counter() < until:
            left -= 1
            results.append(await client.post())
        client.close()

    await asyncio.gather(*(run(number) for number in range(plan["clients"])))
    return results


async def paced(plan: dict[str, Any]) -> list[Answer]:
    """Requests at a fixed rate, whatever the answers take (an open loop)."""
    results: list[Answer] = []
    free: asyncio.Queue[Client] = asyncio.Queue()
    for number in range(plan["clients"]):
        client = Client(plan, number)
        await client.connect()
        free.put_nowait(client)

    async def one() -> None:
        client = await free.get()
        results.append(await client.post())
        free.put_nowait(client)

    started = time.perf_counter()
    tasks: list[asyncio.Task[None]] = []
    for number in range(int(plan["rate"] * plan["seconds"])):
        await asyncio.sleep(max(started + number / plan["rate"] - time.perf_counter(), 0))
        tasks.append(asyncio.create_task(one()))
    await asyncio.gather(*tasks)
    return results


def main() -> None:
    plan: dict[str, Any] = json.loads(sys.argv[1])
    began, started = time.time(), time.perf_counter()
    results = uvloop.run(paced(plan) if plan.get("rate") else flood(plan))
    seconds = time.perf_counter() - started
    told: dict[str, Any] = {
        "began": began,
        "seconds": seconds,
        "cpu_seconds": time.process_time(),
        "statuses": Counter(str(answer.status) for answer in results),
        "latencies": [answer.seconds for answer in results],
    }
    if plan.get("ids"):
        told["ids"] = {answer.name: json.loads(answer.body).get("workloadId") for answer in results}
    print(json.dumps(told))


if __name__ == "__main__":
    main()
