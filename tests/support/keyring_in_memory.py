"""A keyring of the system as the library `keyring` sees one: what no test can have of the system itself."""

import threading
from typing import override

from keyring.backend import KeyringBackend
from keyring.errors import KeyringLocked


class KeyringInMemory(KeyringBackend):
    """Keeps what it is given; may be locked, or never answer."""

    priority = 5  # pyright: ignore[reportAssignmentType] - as the library's own backends say it

    def __init__(self) -> None:
        super().__init__()
        self.held: dict[tuple[str, str], str] = {}
        self.locked = False
        self.hangs = threading.Event()
        self.hangs.set()

    @override
    def get_password(self, service: str, username: str) -> str | None:
        self._opened()
        return self.held.get((service, username))

    @override
    def set_password(self, service: str, username: str, password: str) -> None:
        self._opened()
        self.held[service, username] = password

    @override
    def delete_password(self, service: str, username: str) -> None:
        self._opened()
        del self.held[service, username]

    def _opened(self) -> None:
        self.hangs.wait()
        if self.locked:
            raise KeyringLocked("Failed to unlock the collection!")
