"""`muster token`: tokens signed by the local key of `muster up` and compose, and the roles they go with."""

import os
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from muster.cli.command import Session, command, group
from muster.cli.exits import ExitCode, Problem, usage
from muster.cli.names import find_default_project, find_project
from muster.cli.options import duration_option
from muster.cli.roles import ADMINISTRATOR, ROLES, check_role, give, role_names, told

if TYPE_CHECKING:
    from collections.abc import Mapping

DEFAULT_PROJECT: Final = "default"
"""The project that `muster up` makes."""
ADMINISTRATOR_SECONDS: Final = 60
"""Life of the token that writes the binding: as long as one call with its retries may take."""


def add_token(root: typer.Typer) -> None:
    app = group("token")

    @command(
        app,
        "create",
        output=False,
        examples="""
        muster token create --user ann --role researcher --project vision
        export MUSTER_TOKEN=$(muster token create --user ann)
        muster token create --user root --role administrator --ttl 1h
        muster token create --user ann --claim uid=1000 --claim gid=1000
        """,
    )
    def create(
        session: Session,
        *,
        user: Annotated[str, typer.Option("--user", "-u", help="User that the token is for: its subject.")],
        role: Annotated[
            str | None,
            typer.Option(
                "--role", help=f"Also give the user this role: {', '.join(ROLES)}.", autocompletion=role_names
            ),
        ] = None,
        project: Annotated[
            str | None,
            typer.Option(
                "--project",
                "-p",
                help="Project in which to give the role. Without --role: researcher. Default: `default`.",
            ),
        ] = None,
        ttl: Annotated[
            str | None,
            typer.Option("--ttl", metavar="DURATION", help="How long the token is valid, at most 24h. Default: 12h."),
        ] = None,
        claim: Annotated[
            list[str] | None,
            typer.Option(
                "--claim",
                metavar="NAME=VALUE",
                help="Further claim, such as the ids for pods whose user comes from the token. Repeat it.",
            ),
        ] = None,
        data_dir: Annotated[
            Path | None,
            typer.Option(
                "--data-dir",
                metavar="DIR",
                help="Data folder of `muster up`, which holds the key. [env MUSTER_DATA_DIR]",
            ),
        ] = None,
    ) -> None:
        """Print a token. With --role or --project also bind the role: administrator everywhere, others in a project.

        The role is bound through the API, so that the log records it. This uses an administrator's token that is valid
        for a minute. Anybody who can read the key can act as any user, so only its owner can read the file.
        """
        wanted = wanted_role(role, project)
        claims = _claims(claim or [])
        signer = Signer(key_file(session, data_dir))
        token = signer.sign(user, None if ttl is None else duration_option("--ttl", ttl), claims)
        if wanted is not None:
            bind(session, signer, user, wanted, project)
        elif session.out.stdout.isatty():
            session.out.talk(f"no role was bound; where {user} has none yet: --role researcher")
        session.out.write(token + "\n")

    _add_show(app)
    root.add_typer(app, name="token")


def _add_show(app: typer.Typer) -> None:
    @command(
        app,
        "show",
        output=False,
        examples="""
        curl -H "Authorization: Bearer $(muster token show)" http://chat-8000-ee2dfd5295fd.localhost:36343/
        muster token show --context staging
        """,
    )
    def show(session: Session) -> None:
        """Print the token in use: of --token, of MUSTER_TOKEN, or of the context, be it in the keyring or not.

        Whoever has it acts as you.
        """
        if not session.token:
            raise Problem(
                "there is no token",
                todo="`muster token create --user U` makes one; `muster login` keeps it",
                code=ExitCode.DENIED,
            )
        session.out.write(session.token + "\n")


def _claims(given: list[str]) -> dict[str, str]:
    """Raises Problem (usage)."""
    claims: dict[str, str] = {}
    for text in given:
        name, separator, value = text.partition("=")
        if not (name and separator):
            raise usage(f"--claim: {text!r} is not NAME=VALUE", todo="as in --claim uid=1000")
        if name in claims:
            raise usage(f"--claim: {name} is given twice; leave one out")
        claims[name] = value
    return claims


def wanted_role(role: str | None, project: str | None) -> str | None:
    """The role to bind, if any. Raises Problem where role and project do not go together."""
    if role is None:
        return "researcher" if project else None
    check_role(role)
    if role == ADMINISTRATOR and project:
        raise usage(
            "the role administrator always applies to all projects",
            todo="leave --project out, or use --role project-admin",
        )
    return role


def key_file(session: Session, data_dir: Path | None) -> Path:
    """The local key: of --data-dir, MUSTER_KEY_FILE, MUSTER_DATA_DIR or the context. Raises Problem."""
    named = os.environ.get("MUSTER_KEY_FILE")
    folder = data_dir or (Path(session.target.data_dir) if session.target.data_dir else None)
    if named and data_dir is None:
        path = Path(named)
    elif folder is not None:
        path = folder.expanduser() / "keys" / "local.json"
    else:
        raise Problem(
            "there is no key to sign with",
            why=("neither --data-dir, MUSTER_DATA_DIR nor the context says where `muster up` keeps its data",),
            todo="start `muster up`, or give --data-dir; a Muster elsewhere has an issuer of its own for tokens",
            code=ExitCode.USAGE,
        )
    if not path.is_file():
        raise Problem(
            f"there is no key at {path}",
            todo="`muster up` makes it when it starts there for the first time; check --data-dir",
            code=ExitCode.NOT_FOUND,
        )
    return path


class Signer:
    """Signs tokens with the local key."""

    def __init__(self, path: Path) -> None:
        from services.runtime.identity.local_keys import LocalKeyError, load_or_create_key
        from services.runtime.process.settings import Settings

        try:
            self._key = load_or_create_key(path)
        except (LocalKeyError, OSError) as error:
            raise Problem(f"the key cannot be used: {error}", code=ExitCode.DENIED) from error
        self.settings = Settings()

    def sign(self, subject: str, ttl_seconds: int | None, claims: "Mapping[str, str] | None" = None) -> str:
        """A token. Raises Problem where a verifier would refuse it."""
        from services.runtime.identity.local_keys import DEFAULT_TTL_SECONDS, sign_token

        try:
            return sign_token(
                self._key,
                subject=subject,
                issuer=self.settings.issuer,
                audience=self.settings.audience,
                ttl_seconds=DEFAULT_TTL_SECONDS if ttl_seconds is None else ttl_seconds,
                claims=claims or {},
            )
        except ValueError as error:
            raise usage(str(error)) from error


def bind(session: Session, signer: Signer, user: str, role: str, project: str | None) -> None:
    """Gives the role as `muster role grant` does, in that project or the default one, but as the administrator, with a
    token made for it.
    """
    from muster.cli.client import Api

    token = signer.sign(signer.settings.admin_subject, ADMINISTRATOR_SECONDS)
    with closing(Api(session.api.url, token, ca_file=session.target.ca_file, talk=session.out.talk)) as administrator:
        try:
            if role == ADMINISTRATOR:
                where = None
            elif project or not session.target.project:
                where = find_project(administrator, project or DEFAULT_PROJECT)
            else:
                where = find_default_project(session, administrator)
            give(administrator, user, role, where)
        except Problem as problem:
            if problem.code is not ExitCode.DENIED:
                raise
            raise Problem(
                f"{user} got no role",
                why=(f"it is given as {signer.settings.admin_subject!r}, who may not: {problem}",),
                todo="set MUSTER_ADMIN_SUBJECT to the name of an administrator, or `muster role grant` as one",
                code=ExitCode.DENIED,
            ) from problem
    session.out.talk(f"{user} is {role} {told(where)}")
