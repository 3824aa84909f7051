"""Brings the code of a run into its folder: part by part from the stream CODE, checked against its digest, unpacked."""

import asyncio
import shutil
from pathlib import Path
from typing import Final, Protocol

from nats.errors import Error as NatsError

from events.cluster_protocol import RunPod
from services.agent.backends.interface import BackendError
from services.runtime.code.archive import ArchiveError, unpack
from services.runtime.code.kept import Code, CodeError, KeptCode
from services.runtime.log.store import LogUnavailableError

FETCH_SECONDS: Final = 120.0
"""For all of one archive; the run is then tried again later."""
MOST_BYTES: Final = 1024**3
"""Of one archive: a bound on what the api's settings may say."""
BAD_CODE: Final = "bad_code"


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
            async with asyncio.timeout(FETCH_SECONDS):
                await self._fetch(code, archive)
                await asyncio.to_thread(_unpack_anew, archive, folder)
        except (CodeError, ArchiveError) as error:
            return f"its code cannot be used: {error}"
        except (LogUnavailableError, NatsError, TimeoutError) as error:
            reason = str(error) or f"it was not there within {FETCH_SECONDS:.0f} s"
            raise BackendError(f"the code of {pod.pod_key} cannot be fetched now: {reason}") from error
        finally:
            archive.unlink(missing_ok=True)
        return ""

    async def _fetch(self, code: Code, archive: Path) -> None:
        size = 0
        with archive.open("wb") as file:
            async for part in self._kept.parts(code):
                size += len(part)
                if size > MOST_BYTES:
                    raise CodeError(f"it has more than {MOST_BYTES} bytes")
                file.write(part)


def _unpack_anew(archive: Path, folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    unpack(archive, folder)
