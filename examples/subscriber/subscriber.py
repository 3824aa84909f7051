"""Prints public events of a project, each once: python subscriber.py SUBSCRIPTION.json

The file is what `muster subscription create -o json` prints. Needs `nats-py` and `nkeys`, and nothing of Muster's.
"""

import asyncio
import json
import os
import ssl
import sys
from pathlib import Path
from urllib.parse import unquote

import nats
import nats.errors

PAUSE_SECONDS = 1


async def main(file: str) -> None:
    given: dict[str, str] = json.loads(Path(file).read_text())
    url, authority = os.environ.get("NATS_URL") or given["url"], os.environ.get("NATS_CA")
    tls = ssl.create_default_context(cafile=authority) if url.startswith("tls:") else None
    connection = await nats.connect(url, tls=tls, nkeys_seed_str=given["seed"], inbox_prefix=given["inboxPrefix"])
    jetstream = connection.jetstream(domain=given["domain"])
    subscription = await jetstream.pull_subscribe_bind(given["consumer"], stream=given["stream"])
    seen: set[str] = set()  # a real one keeps these as long as what it does with the events
    while True:
        try:
            messages = await subscription.fetch(100, timeout=30)
        except nats.errors.TimeoutError:
            continue  # nothing has happened
        except nats.errors.Error:
            if connection.is_closed:
                raise
            await asyncio.sleep(PAUSE_SECONDS)  # the server is away, or writes the stream anew
            continue
        for message in messages:
            event = {name: unquote(value) for name, value in (message.headers or {}).items()}
            if event["ce-id"] not in seen:
                seen.add(event["ce-id"])
                print(event["ce-type"], json.loads(message.data).get("name", ""), flush=True)
            await message.ack()  # what is not acknowledged comes again


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
