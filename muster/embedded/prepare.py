"""One-shot child of `muster up`: writes the NATS configuration, again when a cluster comes or goes, and keys.

A process of its own, because what it imports would stay in the supervisor's memory for as long as that runs.
"""

import contextlib
import json
import secrets
import sys
from pathlib import Path
from typing import Final

from events.subjects import EVENTS_STREAM
from muster.embedded.datadir import DataDir, write_private
from services.runtime.nats.declared import file_store_bytes
from services.runtime.nats.inboxes import agent_user
from services.runtime.nats.nats_config import CalloutKeys, render_nats_config
from services.runtime.nats.nkeys import KeyPair, Kind, new_seed
from services.runtime.process.settings import Settings
from services.runtime.services import SERVICES

WEBHOOK_KEY_BYTES: Final = 32


def main(root: Path, nats_port: int) -> None:
    """Write what NATS needs to start. Changes nothing that is already as it should be."""
    data = DataDir(root=root)
    passwords = {service: data.secret(f"nats/{service}") for service in SERVICES}
    agents = {cluster_id: data.secret(f"nats/{agent_user(cluster_id)}") for cluster_id in data.connected_clusters()}
    # Nothing makes the log smaller: one that was given more room once keeps it.
    log_max_bytes = max(Settings().log_max_bytes, kept_log_max_bytes(data.nats / "jetstream"))
    text = render_nats_config(
        passwords=passwords,
        callout=CalloutKeys(
            issuer=_public(data, "issuer", "account"),
            responder=_public(data, "responder", "user"),
        ),
        agents=agents,
        store_dir=str(data.nats / "jetstream"),
        port=nats_port,
        max_file_store=file_store_bytes(log_max_bytes),
    )
    write_private(data.nats / "nats.conf", text)
    if not data.webhook_key_file.exists():
        write_private(data.webhook_key_file, secrets.token_hex(WEBHOOK_KEY_BYTES))
    _credential_keys(data)
    for path in data.nats_secrets.glob(agent_user("*")):
        if path.name not in map(agent_user, agents):
            path.unlink()


def _credential_keys(data: DataDir) -> None:
    """Made where there are none; the public half follows from the private ones."""
    from services.runtime.credentials.keys import new_ring, read_ring, write_public, write_ring

    if not data.credential_key_file.exists():
        write_ring(data.credential_key_file, new_ring())
    write_public(data.credential_public_key_file, read_ring(data.credential_key_file))


def _public(data: DataDir, name: str, kind: Kind) -> str:
    """The public half of a key of `subscriptions`; the key is made where there is none yet."""
    path = data.callout / name
    if not path.exists():
        write_private(path, new_seed(kind))
    return KeyPair(path.read_text()).public


def kept_log_max_bytes(store: Path) -> int:
    """How large the log that is there may grow, as the server keeps it; 0 where there is none."""
    found = 0
    for file in store.glob(f"jetstream/*/streams/{EVENTS_STREAM}/meta.inf"):
        with contextlib.suppress(OSError, ValueError, KeyError):  # what is broken the server says itself
            found = max(found, int(json.loads(file.read_text())["max_bytes"]))
    return found


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
