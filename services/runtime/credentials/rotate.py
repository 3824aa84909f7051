"""A new key for the store of credentials: every value is sealed to it, then the old one is forgotten.

The new key is in the file before anything is sealed to it, and the old one until nothing is sealed to that. What is
killed halfway is finished by the next run.
"""

import asyncio
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

import structlog
from msgspec.structs import replace

from services.runtime.credentials.kept import REQUEST_SECONDS, KeptCredentials
from services.runtime.credentials.keys import alone_with, key_name, new_ring, read_ring, write_public, write_ring
from services.runtime.credentials.sealed import SealError
from services.runtime.nats.requests import Requests

USER: Final = "rotate"
"""On NATS."""
SEALED_BEFORE_SECONDS: Final = 2 * REQUEST_SECONDS
"""After the public key was replaced: by then all that the API sealed to the one before is stored, or refused."""
SEED_SECONDS: Final = 600.0
"""Until the new seed is used: by then every cluster_sync has the file with it. Two that had not the same would tell the
pods of one workload different keys.
"""
MOST_ROUNDS: Final = 10
"""Over all values, until none is sealed to an old key. Two do, unless somebody goes on with an old public key."""

log = structlog.get_logger(__name__)

type Progress = Callable[[int, int], None]
"""Called with what is done and what there is to do."""


class RotationError(Exception):
    """It did not come to its end; the message says why. Both keys are kept, and it can be run again."""


async def rotate(
    requests: Requests,
    key_file: Path,
    public_file: Path,
    progress: Progress,
    *,
    wait_seconds: float = SEALED_BEFORE_SECONDS,
) -> int:
    """How many values were sealed anew. Raises KeyFileError, OSError, RotationError, LogUnavailableError,
    JetStreamError; then it is to be run again.
    """
    with alone_with(key_file):
        return await _rotate(requests, key_file, public_file, progress, wait_seconds)


async def _rotate(
    requests: Requests, key_file: Path, public_file: Path, progress: Progress, wait_seconds: float
) -> int:
    ring = read_ring(key_file)
    if len(ring.keys) == 1:
        seeded = ring.with_seeds(new_since=datetime.now(UTC) + timedelta(seconds=SEED_SECONDS))
        ring = replace(seeded, keys=(*new_ring().keys, *ring.keys))
        write_ring(key_file, ring)
    # With several, an earlier run was killed: its new key is the first.
    write_public(public_file, ring)
    await asyncio.sleep(wait_seconds)
    kept, newest = KeptCredentials(requests), key_name(ring.public)
    done = 0
    for _ in range(MOST_ROUNDS):
        subjects = await kept.subjects()
        changed = 0
        for number, subject in enumerate(subjects):
            try:
                changed += await kept.seal_again(subject, ring, newest)
            except SealError as error:
                # No key opens it: who needs it is told so, and has to set it again.
                log.warning("credential_not_sealed_again", reason=str(error))
            progress(number + 1, len(subjects))
        done += changed
        if not changed:
            write_ring(key_file, replace(ring.with_seeds(), keys=ring.keys[:1]))
            return done
    raise RotationError("values are still being sealed to an old key: see that every API reads the new public key")
