"""Keys of webhooks, and what is signed with them, as Standard Webhooks has it.

No key is stored: each follows from the installation's one key, the webhook's id and the number of the key. Pure.
"""

import base64
import hmac
from collections.abc import Iterable
from typing import Final

LEAST_BYTES: Final = 32
"""Of the installation's key."""
PREFIX: Final = "whsec_"
_FOR: Final = "muster webhook key"
"""Nothing else may ever be derived from the installation's key with these words."""


class WebhookKeys:
    """Derives keys. Raises ValueError where the installation's key is too short."""

    def __init__(self, of_installation: bytes) -> None:
        if len(of_installation) < LEAST_BYTES:
            raise ValueError(f"the key of webhooks has {len(of_installation)} bytes, and must have {LEAST_BYTES}")
        self._of_installation = of_installation

    def key(self, webhook_id: str, number: int) -> bytes:
        """32 bytes."""
        return hmac.digest(self._of_installation, f"{_FOR}\n{webhook_id}\n{number}".encode(), "sha256")

    def text(self, webhook_id: str, number: int) -> str:
        """As its receiver keeps it."""
        return PREFIX + base64.b64encode(self.key(webhook_id, number)).decode()

    def headers(self, webhook_id: str, numbers: Iterable[int], event_id: str, at: int, body: bytes) -> dict[str, str]:
        """The headers of Standard Webhooks; one signature for each key. `at`: seconds since 1970."""
        signed = f"{event_id}.{at}.".encode() + body
        signatures = (
            "v1," + base64.b64encode(hmac.digest(self.key(webhook_id, number), signed, "sha256")).decode()
            for number in numbers
        )
        return {
            "webhook-id": event_id,
            "webhook-timestamp": str(at),
            "webhook-signature": " ".join(signatures),
        }
