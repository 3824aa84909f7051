"""One-shot child of `muster up`, once all is ready: the cluster `local`, the project `default`, a token, a context.

Done through the API as anybody would, by the administrator. With `--renew` only the token and the context are made
anew, because a token lives a day at most.
"""

import sys
import time
from pathlib import Path
from typing import Final

from muster.cli.contexts import write_context
from muster.embedded.api import Api, CallError, Json
from muster.embedded.datadir import DataDir, write_private
from services.runtime.identity.local_keys import load_or_create_key, sign_token
from services.runtime.process.settings import Settings

PROJECT: Final = "default"
TOKEN_SECONDS: Final = 24 * 3600
"""As long as a token may live; the supervisor has it renewed before."""
PATIENCE_SECONDS: Final = 20.0
"""Services have said that they are ready; what is still away now comes back within that, or something is wrong."""
RETRY_SECONDS: Final = 0.1

DEMO_CLUSTER: Final[Json] = {
    "name": "demo",
    "kind": "simulated",
    "simulatedNodes": [
        {
            "count": 32,
            "prefix": "demo",
            "cpuCores": 64,
            "memoryBytes": 512 * 1024**3,
            "gpus": 8,
            "gpuModel": "simulated",
            "gpuMemoryBytes": 80 * 1024**3,
        }
    ],
}


def main(port: int, root: Path, context: str, *flags: str) -> None:
    """Make sure of everything a person needs to begin; leave the token in the data folder, and in that context."""
    data = DataDir(root=root)
    settings = Settings()
    token = sign_token(
        load_or_create_key(data.key_file),
        subject=settings.admin_subject,
        issuer=settings.issuer,
        audience=settings.audience,
        ttl_seconds=TOKEN_SECONDS,
    )
    write_context(context, f"http://127.0.0.1:{port}", token, root, PROJECT)
    write_private(data.token_file, token)
    if "--renew" not in flags:
        api = Api(port, token)
        ensure(api, "/clusters", "clusters", {"name": "local", "kind": "local"})
        ensure(api, "/org-unit/projects", "projects", {"name": PROJECT})
        if "--demo" in flags:
            ensure(api, "/clusters", "clusters", DEMO_CLUSTER)


def ensure(api: Api, path: str, listed_as: str, body: dict[str, Json]) -> None:
    """Make the named thing where there is none of that name. Raises CallError where that cannot be had."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while True:
        try:
            if not exists(api, path, listed_as, body):
                api.post(path, body)
        except CallError as error:
            # Away for a moment, or a list that does not show yet what there is.
            passing = error.status in {503, 400, 409, 429}
            if not passing or time.monotonic() > deadline:
                raise
            time.sleep(RETRY_SECONDS)
        else:
            return


def exists(api: Api, path: str, listed_as: str, body: dict[str, Json]) -> bool:
    """Whether the list shows a thing of that name; of this machine there is one cluster, also where it has another."""
    # Projects come in pages, and this one may be on none of the first.
    listed = api.get(f"{path}?name={body['name']}" if listed_as == "projects" else path).get(listed_as)
    rows = [item for item in listed if isinstance(item, dict)] if isinstance(listed, list) else []
    local = body.get("kind") == "local"
    return any(row.get("name") == body["name"] or (local and row.get("kind") == "local") for row in rows)


if __name__ == "__main__":
    try:
        main(int(sys.argv[1]), Path(sys.argv[2]), *sys.argv[3:])
    except CallError as refused:
        print(f"muster: {refused}", file=sys.stderr)
        sys.exit(refused.exit_code)
