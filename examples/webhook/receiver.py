"""Receives webhooks of Muster and prints each event once: python receiver.py PORT, with the secret in WEBHOOK_SECRET.

Needs `standardwebhooks`, and nothing of Muster's. Behind a proxy that does TLS, it can stand on the internet.
"""

import os
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from standardwebhooks import Webhook, WebhookVerificationError

SECRET = os.environ.get("WEBHOOK_SECRET") or sys.exit("WEBHOOK_SECRET is not set: `muster webhook create` prints it")
WEBHOOK = Webhook(SECRET)
SEEN: set[str] = set()  # a real one keeps these as long as what it does with the events
MAX_BYTES = 1_000_000


class Receiver(BaseHTTPRequestHandler):
    timeout = 10

    def do_POST(self) -> None:
        body = self.rfile.read(min(int(self.headers.get("content-length", 0)), MAX_BYTES))
        try:
            event = WEBHOOK.verify(body, dict(self.headers))
        except WebhookVerificationError as error:
            self.answer(401, str(error))
            return
        # Delivery is at least once, under the same id.
        if event["id"] not in SEEN:
            SEEN.add(event["id"])
            print(event["type"], event.get("data", {}).get("name", ""), flush=True)
        self.answer(204)

    def answer(self, status: int, message: str = "") -> None:
        self.send_response(status)
        self.send_header("content-length", str(len(message)))
        self.end_headers()
        self.wfile.write(message.encode())


if __name__ == "__main__":
    ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Receiver).serve_forever()
