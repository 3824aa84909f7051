"""One-shot child of `make up-kubernetes`: keys and configuration of the simulated cluster, before it starts."""

import sys
from pathlib import Path

from development.kubernetes.simulated import credentials, programs


def main(folder: Path) -> None:
    """Write what its programs need to start."""
    credentials.make(folder / "credentials")
    programs.write_configuration(folder, programs.ports_of(folder), credentials.admin_token(folder / "credentials"))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
