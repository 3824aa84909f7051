"""A replica that answers HTTP requests, each after a moment, with the number of its pod."""

import os
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

SECONDS = float(os.environ.get("SECONDS_PER_REQUEST", "0.05"))


class Answers(BaseHTTPRequestHandler):
    """Says who answers."""

    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        """Any path."""
        time.sleep(SECONDS)
        said = f"pod {os.environ.get('MUSTER_POD_INDEX', '?')} answers {self.path}\n".encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(said)))
        self.end_headers()
        self.wfile.write(said)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 (the name of the class above)
        """One line for each request, on the pod's own output."""
        print(format % args, flush=True)


ThreadingHTTPServer(("127.0.0.1", int(os.environ["PORT"])), Answers).serve_forever()
