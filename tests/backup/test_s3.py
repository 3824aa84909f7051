"""A backup in an object store: over the protocol of S3, on a server that speaks it."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

import httpx
import pytest
from nats.aio.client import Client

from development.servers import NatsServer
from services.runtime.backup.archive import MANIFEST, BackupError
from services.runtime.backup.check import check, read_manifest
from services.runtime.backup.place import Place
from tests.backup import given

if TYPE_CHECKING:
    from s3fs import S3FileSystem

pytestmark = pytest.mark.anyio

URL = "s3://backups/muster"


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> Iterator["S3FileSystem"]:
    """With the bucket `backups`."""
    from moto.server import ThreadedMotoServer  # each of these takes a second, also where tests are only collected
    from s3fs import S3FileSystem

    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://{host}:{port}")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "a")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "b")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
    S3FileSystem.clear_instance_cache()
    httpx.post(f"http://{host}:{port}/moto-api/reset", trust_env=False).raise_for_status()  # one store for a process
    files = S3FileSystem()
    files.mkdir("backups")
    yield files
    server.stop()
    S3FileSystem.clear_instance_cache()


async def test_a_backup_in_s3_is_added_to_verified_and_restored(
    fresh_log: NatsServer, client: Client, empty: NatsServer, store: "S3FileSystem", monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("services.runtime.backup.archive.SEGMENT_MESSAGES", 8)
    await given.commits(client, 20)
    await given.people(client, 3)
    first = await given.backed_up(fresh_log, URL)
    await given.odd(client)
    second = await given.backed_up(fresh_log, URL)
    assert (first.manifest.seq, second.new_messages) == (20, 7)
    listed = {segment.file for segment in second.manifest.segments} | {part.file for part in second.manifest.kept}
    stored = {name.removeprefix("backups/muster/") for name in store.find("backups/muster")}
    assert stored == {MANIFEST, *listed}, "what the first backup alone needed is gone"
    check(Place(URL), read_manifest(Place(URL)), given.nothing)
    assert await given.compared(fresh_log, URL) == 27
    files: dict[str, bytes] = {}
    await given.restored(empty, URL, files)
    before, after = await given.in_log(fresh_log), await given.in_log(empty)
    assert given.told(after[:-1]) == given.told(before)
    assert files == given.FILES


async def test_a_damaged_or_missing_part_is_refused_by_name(
    fresh_log: NatsServer, client: Client, store: "S3FileSystem"
) -> None:
    await given.commits(client, 5)
    done = await given.backed_up(fresh_log, URL)
    (segment,) = done.manifest.segments
    whole = store.cat_file(f"backups/muster/{segment.file}")
    store.pipe_file(f"backups/muster/{segment.file}", whole[:-3])
    with pytest.raises(BackupError, match=segment.file):
        check(Place(URL), done.manifest, given.nothing)
    store.rm_file(f"backups/muster/{segment.file}")
    with pytest.raises(BackupError, match=f"{segment.file} is missing in {URL}"):
        check(Place(URL), done.manifest, given.nothing)


async def test_a_store_that_cannot_be_used_is_told_in_one_sentence(
    fresh_log: NatsServer, client: Client, store: "S3FileSystem", monkeypatch: pytest.MonkeyPatch
) -> None:
    await given.commits(client, 2)
    with pytest.raises(BackupError, match=r" in s3://nowhere/muster cannot be written: "):
        await given.backed_up(fresh_log, "s3://nowhere/muster")
    store.clear_instance_cache()
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    with pytest.raises(BackupError, match=r"s3://backups/muster cannot be read: "):
        await given.backed_up(fresh_log, URL)
    store.clear_instance_cache()
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", "/nowhere")
    monkeypatch.setenv("AWS_CONFIG_FILE", "/nowhere")
    with pytest.raises(BackupError, match=r"s3://backups/muster cannot be (read|written): .*[Cc]redentials"):
        await given.backed_up(fresh_log, URL)
