"""What a person prefers to see: the columns of a command's table. Kept beside the contexts, without secrets.

The file is `preferences.toml` in the folder of `config.toml`.
"""

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from muster.cli.contexts import config_file
from muster.cli.exits import usage

_FOLDER_MODE: Final = 0o700


def preferences_file(environ: Mapping[str, str]) -> Path:
    return config_file(environ).with_name("preferences.toml")


def columns_of(command: str) -> tuple[str, ...]:
    """Keys of the columns that were kept for a command (`workload list`); none where none were. Raises Problem."""
    return _read(preferences_file(os.environ)).get(command, ())


def keep_columns(command: str, keys: Sequence[str]) -> None:
    """Keeps them in place of those of before; none: as if there never were any. Raises Problem."""
    path = preferences_file(os.environ)
    kept = {**_read(path), command: tuple(keys)}
    lines = ["# Written by --set-default-columns.", "[columns]"]
    lines += [f"{json.dumps(name)} = {json.dumps(list(shown))}" for name, shown in sorted(kept.items()) if shown]
    fresh = path.with_name(f"{path.name}.{os.getpid()}")
    try:
        path.parent.mkdir(mode=_FOLDER_MODE, parents=True, exist_ok=True)
        fresh.write_text("\n".join(lines) + "\n", encoding="utf-8")
        fresh.replace(path)
    except OSError as error:
        raise usage(f"{path} cannot be written: {error.strerror}") from error


def _read(path: Path) -> dict[str, tuple[str, ...]]:
    import tomllib

    try:
        listed: object = tomllib.loads(path.read_text(encoding="utf-8")).get("columns", {})
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise usage(
            f"{path} cannot be read: {error}", todo="correct it, or remove it: it holds columns only"
        ) from error
    columns: dict[str, tuple[str, ...]] = {}
    for name, keys in listed.items() if isinstance(listed, dict) else ():  # pyright: ignore[reportUnknownVariableType]
        if isinstance(name, str) and isinstance(keys, list):
            columns[name] = tuple(str(key) for key in keys)  # pyright: ignore[reportUnknownArgumentType, reportUnknownVariableType]
    return columns
