"""Kubernetes clusters: connected to the `muster up` of this machine by a kubeconfig, or by an agent that runs there."""

import time
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Annotated, Final

import typer

from muster.cli.command import Session, command
from muster.cli.exits import usage
from muster.cli.names import find_cluster
from muster.cli.options import ClusterArgument
from muster.cli.values import Row, rows_of, text_of

if TYPE_CHECKING:
    from muster.embedded.datadir import DataDir

CONNECTED_SECONDS: Final = 20.0
"""An agent is started within two seconds, and heard as soon as it has listed its cluster."""
POLL_SECONDS: Final = 0.3


def connect_cluster(
    session: Session, name: str, kubeconfig: Path, kube_context: str, idempotency_key: str | None
) -> None:
    """Adds the cluster and gives its kubeconfig to `muster up`, which runs an agent for it. What was begun and broke
    off is completed by the same command again; for a cluster that is there, the kubeconfig is replaced. Raises Problem.
    """
    from muster.cli.kubernetes_server import check, prepare
    from muster.embedded.datadir import write_private
    from muster.embedded.kubeconfig import KubeconfigError, minified

    data = _data_folder(session)
    try:
        text = minified(kubeconfig, kube_context)
    except KubeconfigError as error:
        raise usage(str(error), todo="check --kubeconfig and --context") from error
    server = check(kubeconfig, kube_context)
    session.out.talk(f"its API server answers: Kubernetes {server}")
    identifier = _added(session, name, idempotency_key)
    # Last, and in one step: from here on there is an agent.
    data.clusters.mkdir(mode=0o700, exist_ok=True)
    write_private(data.clusters / identifier, text)
    refused = prepare(kubeconfig, kube_context)
    if refused:
        session.out.talk(
            "GPUs are shared there only after somebody has applied namespace.yaml, accounts.yaml and reservations.yaml "
            f"of deploy/kubernetes; this user may not: {refused}"
        )
    session.out.talk(f"cluster {name} added; `muster up` starts an agent for it")
    _wait_connected(session, name, data.logs / f"agent-{identifier}.log")


def add_elsewhere(session: Session, name: str, idempotency_key: str | None) -> None:
    """Adds a cluster whose agent will run in it."""
    session.api.mutate("POST", "/clusters", {"name": name, "kind": "kubernetes"}, idempotency_key=idempotency_key)
    session.out.talk(f"cluster {name} added; `muster cluster agent {quote(name)}` prints what its agent needs")


def disconnect_cluster(session: Session, identifier: str) -> None:
    """Ends the agent that this machine runs for a removed cluster, if it does."""
    if session.target.data_dir:
        from muster.embedded.datadir import DataDir

        (DataDir(root=Path(session.target.data_dir)).clusters / identifier).unlink(missing_ok=True)


def _data_folder(session: Session) -> "DataDir":
    from muster.embedded.datadir import DataDir, DataDirError

    elsewhere = "for Muster on servers: `muster cluster add NAME --kubernetes`, then `muster cluster agent NAME`"
    if not session.target.data_dir:
        raise usage(
            "--kubeconfig works only with a `muster up` on this machine, and this context is not one", todo=elsewhere
        )
    data = DataDir(root=Path(session.target.data_dir))
    try:
        data.ports()
    except DataDirError as error:
        raise usage(str(error), todo=elsewhere) from error
    return data


def _added(session: Session, name: str, idempotency_key: str | None) -> str:
    for cluster in rows_of(session.api.get("/clusters"), "clusters"):
        if text_of(cluster, "name") == name and text_of(cluster, "kind") == "kubernetes":
            return text_of(cluster, "id")
    body: Row = {"name": name, "kind": "kubernetes"}
    return text_of(session.api.mutate("POST", "/clusters", body, idempotency_key=idempotency_key).body, "id")


def _wait_connected(session: Session, name: str, log: Path) -> None:
    """Until its agent is heard; that it is not yet is no failure, for everything is in place."""
    deadline = time.monotonic() + CONNECTED_SECONDS
    while time.monotonic() < deadline:
        cluster = find_cluster(session.api, name)
        if text_of(cluster, "status") == "Connected":
            session.out.talk(f"cluster {name} is connected")
            return
        time.sleep(POLL_SECONDS)
    session.out.talk(
        f"its agent is not heard yet; `muster cluster describe {quote(name)}` tells when it is, "
        f"and it says why not in {log}"
    )


PasswordFileOption = Annotated[
    Path,
    typer.Option(
        "--password-file",
        metavar="FILE",
        help="File with the password of the agent's NATS user. Created if it does not exist.",
    ),
]
WaysOption = Annotated[
    bool,
    typer.Option("--ways", help="Also let the agent into pods: exec, bash, attach and port-forward need it."),
]


def add_agent(app: typer.Typer) -> None:
    """Declares `muster cluster agent`."""

    @command(
        app,
        "agent",
        output=False,
        examples="""
        muster cluster agent prod --password-file prod.password --nats-user     # an entry for NATS' agents.conf
        muster cluster agent prod --password-file prod.password --nats-url tls://nats.example.com:4222 > prod.yaml
        """,
    )
    def agent(
        session: Session,
        cluster: ClusterArgument,
        *,
        password_file: PasswordFileOption,
        nats_url: Annotated[
            str | None,
            typer.Option("--nats-url", metavar="URL", help="URL at which the agent reaches NATS: tls://HOST:4222."),
        ] = None,
        ca_file: Annotated[
            Path | None,
            typer.Option(
                "--ca-file", metavar="FILE", help="CA certificate that signed NATS' certificate, if it is your own."
            ),
        ] = None,
        image: Annotated[str, typer.Option("--image", help="Container image of the agent.")] = "muster",
        ways: WaysOption = False,
        nats_user: Annotated[
            bool, typer.Option("--nats-user", help="Print the NATS user instead of the manifests.")
        ] = False,
    ) -> None:
        """Print the Kubernetes manifests of a cluster's agent, or its NATS user."""
        row = find_cluster(session.api, cluster)
        if text_of(row, "kind") != "kubernetes":
            raise usage(f"cluster {cluster} is of kind {text_of(row, 'kind')}: it has no agent of its own")
        if not nats_user and not nats_url:
            raise usage(
                "the address of NATS is missing",
                todo="give --nats-url tls://HOST:4222, or only print the user with --nats-user",
            )
        for url in nats_url.split(",") if nats_url else ():
            _check_tls(url.strip())
        try:
            password = _password(password_file)
            authority = "" if ca_file is None else ca_file.read_text()
        except OSError as error:
            raise usage(f"{error.filename} cannot be used: {error.strerror}") from error
        if nats_user:
            from services.runtime.nats.nats_config import agent_user_block

            session.out.write(agent_user_block(text_of(row, "id"), password) + "\n")
            return
        import yaml

        from muster.cli.agent_manifests import agent as manifests

        assert nats_url is not None
        made = manifests(
            cluster_id=text_of(row, "id"),
            nats_url=nats_url,
            password=password,
            authority=authority,
            image=image,
            ways=ways,
        )
        session.out.write(yaml.safe_dump_all(made, sort_keys=False))


def _check_tls(url: str) -> None:
    """Raises Problem (usage): a password goes over other people's networks by TLS alone."""
    from urllib.parse import urlsplit

    try:
        parts = urlsplit(url)
        fit = parts.scheme == "tls" and parts.hostname and parts.port != 0
    except ValueError:
        fit = False
    if not fit:
        raise usage(f"--nats-url: {url!r} is not an address of NATS with TLS", todo="write it as tls://HOST:4222")


def _password(file: Path) -> str:
    """What the file holds; a new one where there is no file. Raises OSError."""
    import secrets

    from muster.embedded.datadir import SECRET_BYTES, write_private

    if not file.exists():
        write_private(file, secrets.token_urlsafe(SECRET_BYTES))
    return file.read_text().strip()
