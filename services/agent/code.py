"""The code of a run: part by part from the stream CODE, checked against its digest; into a folder, or as it is."""

import asyncio
import io
import shutil
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import BinaryIO, Final, Protocol

from nats.errors import Error as NatsError

from events.cluster_protocol import RunPod
from services.agent.backends.interface import BackendError
from services.runtime.code.archive import ArchiveError, check, unpack
from services.runtime.code.kept import Code, CodeError, KeptCode
from services.runtime.log.store import LogUnavailableError

FETCH_SECONDS: Final = 120.0
"""For all of one archive; the run is then tried again later."""
MOST_BYTES: Final = 1024**3
"""Of one archive: a bound on what the api's settings may say."""


class BadCodeError(Exception):
    """It can never be used; the message says why, as a sentence."""


class CodeArchives(Protocol):
    async def read(self, code: Code, *, most_bytes: int) -> bytes:
        """The archive, checked. Raises BadCodeError, BackendError."""
        ...


class CodeSource(Protocol):
    async def bring(self, cluster_id: str, pod: RunPod, folder: Path) -> str:
        """Fill a folder, which may be there, with the pod's code: why that can never be, in words; empty where it was
        done. Raises BackendError, OSError.
        """
        ...


class KeptSource:
    """From the stream. What is not right about an archive is said of this one run, and harms no other."""

    def __init__(self, kept: KeptCode) -> None:
        self._kept = kept

    async def bring(self, cluster_id: str, pod: RunPod, folder: Path) -> str:
        code = Code(cluster_id=cluster_id, project_id=pod.project_id, digest=pod.code)
        archive = folder.with_name("code.tar")
        try:
            async with _usable():
                with archive.open("wb") as file:
                    await self._fetch(code, file, MOST_BYTES)
                await asyncio.to_thread(_unpack_anew, archive, folder)
        except BadCodeError as error:
            return str(error)
        finally:
            archive.unlink(missing_ok=True)
        return ""

    async def read(self, code: Code, *, most_bytes: int) -> bytes:
        archive = io.BytesIO()
        async with _usable():
            await self._fetch(code, archive, most_bytes)
            archive.seek(0)
            await asyncio.to_thread(check, archive)
        return archive.getvalue()

    async def _fetch(self, code: Code, file: BinaryIO, most_bytes: int) -> None:
        size = 0
        async for part in self._kept.parts(code):
            size += len(part)
            if size > most_bytes:
                raise CodeError(f"it has more than {most_bytes} bytes")
            file.write(part)


@asynccontextmanager
async def _usable() -> AsyncGenerator[None]:
    """Raises BadCodeError, BackendError."""
    try:
        async with asyncio.timeout(FETCH_SECONDS):
            yield
    except (CodeError, ArchiveError) as error:
        raise BadCodeError(f"its code cannot be used: {error}") from error
    except (LogUnavailableError, NatsError, TimeoutError) as error:
        reason = str(error) or f"it was not there within {FETCH_SECONDS:.0f} s"
        raise BackendError(f"its code cannot be fetched now: {reason}") from error


def _unpack_anew(archive: Path, folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    unpack(archive, folder)
