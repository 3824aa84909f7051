"""What goes through a session, as the API, agents and the command line say it: one byte, then what it announces.

The first five numbers are those of Kubernetes' `channel.k8s.io`. Nothing is imported here that takes time.
"""

from typing import Final

SUBPROTOCOL: Final = "v1.session.muster.dev"
"""Of the WebSocket."""
FRAME_BYTES: Final = 64 * 1024
"""Of one frame, with its head."""
WINDOW: Final = 4
"""Frames on their way that the other side has not taken: with FRAME_BYTES, what one that stands still costs."""

STDIN: Final = 0
"""To the pod: bytes."""
STDOUT: Final = 1
"""From the pod: bytes; of a terminal, all."""
STDERR: Final = 2
"""From the pod: bytes."""
STATUS: Final = 3
"""From the pod, as the last frame: JSON, `reason`, `message`, `exitCode`."""
RESIZE: Final = 4
"""To the pod: JSON, `columns` and `rows` of the terminal."""
END: Final = 5
"""To the pod: nothing more comes on STDIN."""

CONNECT: Final = 6
"""To the pod: a new connection, and two bytes: the port of the container. As of all below, four bytes stand before
that: the number of the connection, which the client chooses."""
DATA: Final = 7
"""Of a connection, in either direction: bytes."""
EOF: Final = 8
"""Of a connection: nothing more comes in this direction."""
RESET: Final = 9
"""Of a connection, in either direction: it is over; and why, in UTF-8."""
TAKEN: Final = 10
"""Of a connection, in either direction: one frame of DATA was taken. As many as WINDOW may be on their way."""

EXEC_TO_POD: Final = frozenset((STDIN, RESIZE, END))
FORWARD: Final = frozenset((CONNECT, DATA, EOF, RESET, TAKEN))
CONNECTION_BYTES: Final = 4
MOST_CONNECTIONS: Final = 100
"""Of one session, open at a time."""
