"""Which of this machine's programs stands for a command, since no image brings one along. It is looked at, never run:
the workload may name any file.
"""

import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path


def program_of(arguments: Sequence[str], environment: Mapping[str, str]) -> str:
    """What the command is here, in words; empty where that is not known before it starts."""
    command = arguments[0] if arguments else ""
    if not command or "\0" in command or ("/" in command and not command.startswith("/")):
        return ""
    found = shutil.which(command, path=environment.get("PATH", ""))
    if found is None:
        return ""
    real = Path(found).resolve().name
    version = f" ({real})" if real != Path(found).name else ""
    if found == command and not version:
        return ""
    return f"{command!r} is {found}{version} of this machine"
