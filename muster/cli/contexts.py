"""Which Muster to talk to: the contexts file, the environment, and which of them wins.

The file is `$XDG_CONFIG_HOME/muster/config.toml` (else `~/.config/muster/config.toml`), mode 0600 because it holds
tokens, except those that are in the system's keyring (keyrings.py). `muster up` writes a context here by
`write_context`; this module imports nothing else of the command line.
"""

import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

CONTEXT_NAME = re.compile(r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,62}$")
CONTEXT: Final = "local"
"""That of the `muster up` on this machine."""
IN_KEYRING: Final = "keyring"
_PRIVATE_FILE: Final = 0o600
_PRIVATE_FOLDER: Final = 0o700


class ContextsError(ValueError):
    """The contexts file, or a name in it, cannot be used; the message says why."""


class UnknownContextError(ContextsError):
    """There is no context of a name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """One Muster and who we are there."""

    url: str = ""
    token: str = ""
    token_in: str = ""
    """`keyring` where the token is there instead; else empty."""
    ca_file: str = ""
    """Of the authorities whose certificates alone are trusted; empty for those that this machine trusts."""
    data_dir: str = ""
    """Where `muster up` keeps it, on this machine; empty for one elsewhere."""
    project: str = ""
    """Default project (name)."""
    cluster: str = ""
    """Default cluster (name)."""
    sandbox: str = ""
    """Name of the sandbox that it leads to (`muster replay`); empty for a Muster."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Contexts:
    """The contexts file as a value."""

    current: str = ""
    contexts: Mapping[str, Context] = field(default_factory=dict[str, Context])


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """What one command works with, after flags, environment and file were weighed."""

    name: str
    """Of the context; empty where flags and environment said everything."""
    url: str
    token: str
    in_keyring: bool
    """Whether the token is in the keyring, under the name of the context and its URL; then `token` is empty."""
    ca_file: str
    data_dir: str
    project: str
    cluster: str


def config_file(environ: Mapping[str, str]) -> Path:
    """Where the contexts are kept."""
    base = environ.get("XDG_CONFIG_HOME") or str(Path(environ.get("HOME") or Path.home()) / ".config")
    return Path(base) / "muster" / "config.toml"


def read_contexts(path: Path) -> Contexts:
    """The file's contexts; none where there is no file. Raises ContextsError where it is not readable as such."""
    import tomllib

    try:
        document = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return Contexts()
    except (OSError, ValueError) as error:
        raise ContextsError(f"{path} cannot be read: {error}") from error
    listed: object = document.get("contexts", {})
    if not isinstance(listed, dict):
        raise ContextsError(f"{path}: 'contexts' must be a table")
    contexts: dict[str, Context] = {}
    for name, entry in document.get("contexts", {}).items():
        if not isinstance(entry, dict):
            raise ContextsError(f"{path}: context {name!r} must be a table with url and token")
        texts = {key: str(entry.get(key, "")) for key in Context.__dataclass_fields__}  # pyright: ignore[reportUnknownMemberType, reportUnknownArgumentType]
        contexts[name] = Context(**texts)
    return Contexts(current=str(document.get("current", "")), contexts=contexts)


def save_contexts(path: Path, contexts: Contexts) -> None:
    """Replaces the file in one step, readable by its owner alone from the first byte on."""
    path.parent.mkdir(mode=_PRIVATE_FOLDER, parents=True, exist_ok=True)
    lines = ["# Written by `muster context` and `muster up`. Holds tokens: keep it to yourself."]
    lines.append(f"current = {_toml_text(contexts.current)}")
    for name, context in contexts.contexts.items():
        lines += ["", f"[contexts.{_toml_text(name)}]"]
        lines += [
            f"{key} = {_toml_text(value)}"
            for key in Context.__dataclass_fields__
            if (value := str(getattr(context, key)))
        ]
    fresh = path.with_name(f"{path.name}.{os.getpid()}")
    descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, _PRIVATE_FILE)
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        file.write("\n".join(lines) + "\n")
        file.flush()
        os.fsync(file.fileno())
    fresh.replace(path)


def write_context(name: str, url: str, token: str, data_dir: str | Path, project: str) -> Path:
    """Adds or replaces a context. Answers the file's path.

    What its user chose stays: its default project and cluster, where it is of the same data folder, and which context
    is the current one, where there is one.
    """
    path = config_file(os.environ)
    known = read_contexts(path)
    before = known.contexts.get(name, Context())
    kept = before if before.data_dir == str(data_dir) else Context()
    context = replace(kept, url=url, token=token, token_in="", data_dir=str(data_dir), project=kept.project or project)
    save_contexts(path, with_context(known, name, context, use=known.current not in known.contexts))
    return path


def with_context(contexts: Contexts, name: str, context: Context, *, use: bool) -> Contexts:
    """The contexts with this one added or replaced; current where asked, or where none was."""
    if CONTEXT_NAME.match(name) is None:
        raise ContextsError(
            f"{name!r} is not a valid name for a context: letters, digits, '-', '_' and '.', at most 63"
        )
    current = name if use or not contexts.current else contexts.current
    return replace(contexts, current=current, contexts={**contexts.contexts, name: context})


def resolve(
    contexts: Contexts,
    environ: Mapping[str, str],
    *,
    context: str | None = None,
    url: str | None = None,
    token: str | None = None,
    ca_file: str | None = None,
) -> Target:
    """Flag over environment over file. A context that a flag names is itself more than the environment, which then only
    gives what the context lacks. A context's token goes to that context's URL only, never to another.

    Raises UnknownContextError where a context is named that does not exist.
    """
    asked = context or environ.get("MUSTER_CONTEXT")
    name = asked or contexts.current
    if asked and asked not in contexts.contexts:
        known = ", ".join(contexts.contexts) or "none"
        raise UnknownContextError(f"there is no context {asked!r}; known are: {known}")
    ours = contexts.contexts.get(name, Context())

    def chosen(flag: str | None, variable: str, own: str) -> str:
        given = environ.get(variable)
        return flag or ((own or given) if context else (given or own)) or ""

    chosen_url = chosen(url, "MUSTER_URL", ours.url).rstrip("/")
    foreign = chosen_url != ours.url.rstrip("/")
    if foreign:
        # The rest of the context speaks of another Muster.
        ours, name = Context(), ""
    in_keyring = ours.token_in == IN_KEYRING and not token and (bool(context) or not environ.get("MUSTER_TOKEN"))
    return Target(
        name=name if name in contexts.contexts else "",
        url=chosen_url,
        token="" if in_keyring else chosen(token, "MUSTER_TOKEN", ours.token),
        in_keyring=in_keyring,
        ca_file=chosen(ca_file, "MUSTER_CA_FILE", ours.ca_file),
        data_dir=chosen(None, "MUSTER_DATA_DIR", ours.data_dir),
        project=chosen(None, "MUSTER_PROJECT", ours.project),
        cluster=ours.cluster,
    )


def _toml_text(value: str) -> str:
    """A TOML basic string; JSON's escapes are TOML's, but for DEL, which TOML wants escaped."""
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
