"""A backup of a real server's log: equal to it byte for byte, incremental, of one log, by one writer at a time."""

import asyncio
import contextlib
import resource
from collections.abc import Generator
from pathlib import Path

import pytest
from nats.aio.client import Client

from development.servers import EVERYTHING, NatsServer
from development.streams import recreate_streams
from services.runtime.backup.archive import MANIFEST, BackupError
from services.runtime.backup.check import check, messages_of, parse_head, read_manifest, unlisted
from services.runtime.backup.place import LOCK, Place
from services.runtime.backup.seal import sealer_of
from services.runtime.backup.source import Source
from services.runtime.backup.write import back_up
from services.runtime.nats.connection import connect
from services.runtime.nats.requests import Requests
from tests.backup import given
from tests.support.refusals import raw, refused, settle

pytestmark = pytest.mark.anyio


async def test_a_backup_holds_the_log_byte_for_byte(fresh_log: NatsServer, client: Client, tmp_path: Path) -> None:
    await given.commits(client, 20)
    await given.batch(client, 7)
    await given.odd(client)
    done = await given.backed_up(fresh_log, tmp_path)
    stored = await given.in_log(fresh_log)
    place = Place(str(tmp_path))
    assert [message for message, _ in messages_of(place, read_manifest(place))] == stored
    assert done.manifest.head == f"{len(stored)}:{given.chain_of(stored)}"
    assert await given.compared(fresh_log, tmp_path) == len(stored)


async def test_an_empty_log_can_be_backed_up_and_goes_on(fresh_log: NatsServer, client: Client, tmp_path: Path) -> None:
    assert (await given.backed_up(fresh_log, tmp_path)).manifest.seq == 0
    check(Place(str(tmp_path)), read_manifest(Place(str(tmp_path))), given.nothing)
    await given.commits(client, 2)
    assert (await given.backed_up(fresh_log, tmp_path)).manifest.seq == 2


async def test_an_installation_of_an_earlier_version_is_started_once_before_it_is_backed_up(
    fresh_log: NatsServer, client: Client, tmp_path: Path
) -> None:
    await given.commits(client, 2)
    await client.jetstream().delete_stream("WEBHOOKS")
    with pytest.raises(BackupError, match=r"no stream WEBHOOKS: an earlier version .* start the services of this"):
        await given.backed_up(fresh_log, tmp_path)
    assert not (tmp_path / MANIFEST).exists()


async def test_a_second_backup_adds_only_what_is_new(
    fresh_log: NatsServer, client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("services.runtime.backup.archive.SEGMENT_MESSAGES", 4)
    await given.commits(client, 10)
    await given.people(client, 3)
    first = await given.backed_up(fresh_log, tmp_path)
    before = {path: path.read_bytes() for path in tmp_path.glob("events/*")}
    assert len(before) == 3
    await given.commits(client, 5)
    second = await given.backed_up(fresh_log, tmp_path)
    assert second.new_messages == 5
    assert {path: path.read_bytes() for path in before} == before
    assert second.manifest.segments[:3] == first.manifest.segments
    kept = {part.name: part.file for part in first.manifest.kept if part.name != "files"}
    assert {part.name: part.file for part in second.manifest.kept if part.name != "files"} == kept
    check(Place(str(tmp_path)), second.manifest, given.nothing, parse_head(first.manifest.head))
    assert (await given.backed_up(fresh_log, tmp_path)).new_messages == 0
    assert unlisted(Place(str(tmp_path)), read_manifest(Place(str(tmp_path)))) == []


@pytest.mark.parametrize(("room", "what"), [(200, "events/"), (1_200, r"manifest\.json")])
async def test_a_backup_that_finds_no_room_leaves_nothing_and_the_next_one_takes_away_what_a_killed_one_left(
    fresh_log: NatsServer, client: Client, tmp_path: Path, room: int, what: str
) -> None:
    await given.commits(client, 6)
    first = await given.backed_up(fresh_log, tmp_path)
    before = files_in(tmp_path)
    await given.commits(client, 4)
    await given.people(client, 3)
    with no_room_for_more_than(room), pytest.raises(BackupError, match=rf"{what}.* cannot be written"):
        await given.backed_up(fresh_log, tmp_path)
    assert files_in(tmp_path) == before
    check(Place(str(tmp_path)), first.manifest, given.nothing)
    (tmp_path / "events" / ".000000000007-000000000010-0a.zst.new").write_bytes(b"half")
    (tmp_path / "kept" / ".ACTORS-0000-0a.sealed.new").write_bytes(b"half")
    second = await given.backed_up(fresh_log, tmp_path)
    listed = {one.file for one in (*second.manifest.segments, *second.manifest.kept)}
    assert files_in(tmp_path) == {*listed, MANIFEST, LOCK}


@contextlib.contextmanager
def no_room_for_more_than(size: int) -> Generator[None]:
    """Files of this process stay so small: a write beyond it fails half done, as on a full disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def files_in(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


async def test_people_audit_keys_and_files_are_kept_and_nobody_can_read_them(
    fresh_log: NatsServer, client: Client, tmp_path: Path
) -> None:
    await given.commits(client, 1)
    await given.people(client, 5)
    done = await given.backed_up(fresh_log, tmp_path)
    entries = {part.name: part.entries for part in done.manifest.kept}
    assert entries == {"ACTORS": 5, "AUDIT": 5, "KEYS": 5, "WEBHOOKS": 5, "CODE": 0, "CREDENTIALS": 0, "files": 2}
    everything = b"".join(path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())
    for secret in (b"person 1", b"secret of the key", b"kubeconfig"):
        assert secret not in everything
    with pytest.raises(BackupError, match="passphrase, or key file, is not the one"):
        sealer_of(done.manifest.sealing, b"another passphrase")
    with pytest.raises(BackupError, match="passphrase, or key file, is not the one"):
        await given.backed_up(fresh_log, tmp_path, passphrase=b"another passphrase")
    with pytest.raises(BackupError, match="give at least 12"):
        await given.backed_up(fresh_log, tmp_path / "new", passphrase=b"short")
    assert {oct(path.stat().st_mode & 0o777) for path in tmp_path.rglob("*.*") if path.is_file()} == {"0o600"}


async def test_another_log_is_never_added(fresh_log: NatsServer, client: Client, tmp_path: Path) -> None:
    await given.commits(client, 5)
    await given.backed_up(fresh_log, tmp_path)
    await recreate_streams(fresh_log.settings(EVERYTHING))
    await given.commits(client, 3)
    with pytest.raises(BackupError, match=r"the log ends at 3, and this backup goes up to 5: it is of another log"):
        await given.backed_up(fresh_log, tmp_path)
    with pytest.raises(BackupError, match=r"the server's log ends at 3, and the backup goes up to 5"):
        await given.compared(fresh_log, tmp_path)
    await given.commits(client, 3)
    with pytest.raises(BackupError, match=r"message 5 of the log is not the one in this backup"):
        await given.backed_up(fresh_log, tmp_path)
    with pytest.raises(BackupError, match=r"message 1 of the server's log is not the one in the backup"):
        await given.compared(fresh_log, tmp_path)


async def test_two_backups_at_once_into_one_folder_are_refused(
    fresh_log: NatsServer, client: Client, tmp_path: Path
) -> None:
    await given.commits(client, 2)
    Place(str(tmp_path)).make()
    with Place(str(tmp_path)).held(), pytest.raises(BackupError, match=r"another backup into .* is running"):
        await given.backed_up(fresh_log, tmp_path)
    await given.backed_up(fresh_log, tmp_path)


async def test_elsewhere_the_second_of_two_finds_out_before_it_writes_the_manifest(
    fresh_log: NatsServer, client: Client
) -> None:
    """In an object store nothing can be locked."""
    await given.commits(client, 3)
    place = Place("memory://backup-of-tests")
    user = await connect(fresh_log.settings("backup"), "backup")
    source = Source(Requests(user))
    waiting, go_on = asyncio.Event(), asyncio.Event()

    class Slow(Source):
        async def info(self, stream: str):
            if stream == "AUDIT":
                waiting.set()
                await go_on.wait()
            return await super().info(stream)

    def run(by: Source):
        return back_up(by, place, given.PASSPHRASE, given.FILES, version="1", progress=given.nothing)

    slow = asyncio.create_task(run(Slow(Requests(user))))
    await waiting.wait()
    done = await run(source)
    go_on.set()
    with pytest.raises(BackupError, match=r"another backup into .* has ended meanwhile"):
        await slow
    assert read_manifest(place) == done.manifest
    check(place, done.manifest, given.nothing)
    await given.commits(client, 2)
    assert (await run(source)).new_messages == 2
    await user.close()


async def test_the_user_of_backups_can_write_nothing(fresh_log: NatsServer) -> None:
    async with raw(fresh_log, "backup") as (user, refusals):
        subjects = ("ev.tenant.tenant", "actor.k.a", "audit.x", "key.x", "code.c.p.d.part.0")
        for subject in subjects:
            await user.publish(subject, b"x")
        await settle(user)
        assert all(refused(refusals, one) for one in subjects)


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("github://nowhere", "github://nowhere cannot be used: "),
        ("no-such-protocol://x", "no-such-protocol://x cannot be used: "),
    ],
)
def test_a_place_that_cannot_be_used_is_told_by_its_name(url: str, said: str) -> None:
    with pytest.raises(BackupError, match=said):
        Place(url)
