"""How a repository comes into a pod: a script for any shell, which runs before the pod's own program and as the same
user. Pure.

It asks for nothing on a terminal, runs no hooks, and speaks http and https alone, or ssh alone where it has a key: a
repository names no file of the machine and no program. What the server sends more slowly than a person would wait for
is given up.

A user name and a password are variables of that process alone: they stand in no file and in no argument, and only the
repository's own server is told them, wherever it sends git on. A key for ssh must be a file: of this user alone, in
memory, and removed as the script ends. No server is believed but those whose keys came with it; no settings, no agent
and no keys of the image or the machine are used.
"""

from typing import Final
from urllib.parse import urlsplit

from events.workload.volumes import ClonedFolder

CLONE_SECONDS: Final = 600
"""For one repository."""
CLONE_BYTES: Final = 10 * 1024**3
"""Of one repository, with its files."""
NOT_CLONED: Final = "git"
"""Reason of a run that failed because a repository could not be cloned."""
NO_PROGRAM: Final = 81
"""Exit code of the script where a program is missing."""
KEY_FOLDER: Final = "/dev/shm"  # noqa: S108 (of the container, or the pod, that clones)
"""Memory in which the file with a key lies as long as its repository is cloned."""
KEY_BYTES: Final = 1024**2
"""That it needs at most."""
_ENVIRONMENT: Final = {
    "GIT_CONFIG_GLOBAL": "/dev/null",
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_HTTP_LOW_SPEED_LIMIT": "1000",
    "GIT_HTTP_LOW_SPEED_TIME": "60",
    "GIT_TERMINAL_PROMPT": "0",
}
USER, PASSWORD = "MUSTER_GIT_USER", "MUSTER_GIT_PASSWORD"
"""Variables of a repository's login."""
KEY, KNOWN_HOSTS = "MUSTER_GIT_KEY", "MUSTER_GIT_KNOWN_HOSTS"
"""Variables of the key of one over ssh."""
_FILES: Final = f"{KEY_FOLDER}/muster-clone"
_SSH_OPTIONS: Final = {
    "BatchMode": "yes",
    "CheckHostIP": "no",
    "ClearAllForwardings": "yes",
    "ConnectTimeout": "30",
    "ForwardAgent": "no",
    "GlobalKnownHostsFile": "/dev/null",
    "IdentitiesOnly": "yes",
    "IdentityAgent": "none",
    "PreferredAuthentications": "publickey",
    "ServerAliveCountMax": "4",
    "ServerAliveInterval": "15",
    "StrictHostKeyChecking": "yes",
    "UpdateHostKeys": "no",
    "UserKnownHostsFile": f"{_FILES}/known_hosts",
    "VerifyHostKeyDNS": "no",
}
_SSH: Final = f"ssh -F none -i {_FILES}/key " + " ".join(f"-o {name}={value}" for name, value in _SSH_OPTIONS.items())
SCRIPT: Final = f"""\
repository=$1 branch=$2 revision=$3 folder=$4 server=$5
for program in git timeout; do
  command -v "$program" >/dev/null 2>&1 || {{ echo "there is no program $program" >&2; exit {NO_PROGRAM}; }}
done
if [ -n "${{{KEY}:-}}" ]; then
  command -v ssh >/dev/null 2>&1 || {{ echo "there is no program ssh" >&2; exit {NO_PROGRAM}; }}
  trap 'rm -rf {_FILES}' EXIT
  (
    umask 077
    rm -rf {_FILES}
    mkdir {_FILES}
    printf '%s\\n' "${KEY}" >{_FILES}/key
    printf '%s\\n' "${KNOWN_HOSTS}" >{_FILES}/known_hosts
  )
  unset {KEY} {KNOWN_HOSTS}
fi
login='!f() {{ [ "$1" != get ] || printf "username=%s\\npassword=%s\\n" "${{{USER}:-git}}" "${PASSWORD}"; }}; f'
run() {{
  timeout {CLONE_SECONDS} git -c safe.directory='*' -c core.hooksPath=/dev/null -c credential.helper= \\
    -c "credential.$server.helper=$login" -C "$folder" "$@"
}}
run init -q
run remote add origin "$repository"
wanted=${{revision:-${{branch:-HEAD}}}}
if run fetch -q --depth 1 --no-tags origin "$wanted" 2>/dev/null; then
  run checkout -q --detach FETCH_HEAD
elif [ -z "$revision" ]; then
  run fetch -q origin "$wanted"
  run checkout -q --detach FETCH_HEAD
else
  run fetch -q --tags origin '+refs/heads/*:refs/remotes/origin/*'
  run checkout -q --detach "$revision"
fi
"""
"""Its arguments: the repository, a branch and a revision (each may be empty), the folder to fill, and the server that
is told the login. A server that gives no single revision gives all. Kubernetes takes `$(...)` in a command for its own,
so there is none.
"""
NOBODY: Final = "https://nobody.invalid"
"""The server of a repository that everybody may read: none is told anything."""


def clone_environment(volume: ClonedFolder) -> dict[str, str]:
    """Of the script, but for what is secret."""
    if volume.over_ssh:
        return _ENVIRONMENT | {"GIT_ALLOW_PROTOCOL": "ssh", "GIT_SSH_COMMAND": _SSH, "GIT_SSH_VARIANT": "ssh"}
    return _ENVIRONMENT | {"GIT_ALLOW_PROTOCOL": "https:http"}


def clone_command(volume: ClonedFolder) -> tuple[str, ...]:
    server = NOBODY if volume.login is None or volume.over_ssh else _server(volume.repository)
    words = (volume.repository, volume.branch, volume.revision, volume.mount_path, server)
    return ("sh", "-ec", SCRIPT, "clone", *words)


def _server(repository: str) -> str:
    """Without the path, which a server may change."""
    parts = urlsplit(repository)
    return f"{parts.scheme}://{parts.netloc}"
