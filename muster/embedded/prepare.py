"""One-shot child of `muster up`: writes the NATS configuration; again when a cluster comes or goes.

A process of its own, because what it imports would stay in the supervisor's memory for as long as that runs.
"""

import sys
from pathlib import Path

from muster.embedded.datadir import DataDir, write_private
from services.runtime.inboxes import agent_user
from services.runtime.nats_config import render_nats_config
from services.runtime.permissions import PERMISSIONS


def main(root: Path, nats_port: int) -> None:
    """Write what NATS needs to start. Changes nothing that is already as it should be."""
    data = DataDir(root=root)
    passwords = {service: data.secret(f"nats/{service}") for service in PERMISSIONS}
    agents = {cluster_id: data.secret(f"nats/{agent_user(cluster_id)}") for cluster_id in data.connected_clusters()}
    text = render_nats_config(
        passwords=passwords, agents=agents, store_dir=str(data.nats / "jetstream"), port=nats_port
    )
    write_private(data.nats / "nats.conf", text)
    for path in data.nats_secrets.glob(agent_user("*")):
        if path.name not in map(agent_user, agents):
            path.unlink()


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
