"""A restore gives the log back as it was: sequences, subjects, payloads and hash; into nothing that lives."""

from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from nats.aio.client import Client

from development.servers import EVERYTHING, NatsServer
from development.streams import recreate_streams
from events.installation import Log
from events.subjects import credential_subject
from services.runtime.backup.archive import FILES, MANIFEST, BackupError, Manifest, encode_manifest
from services.runtime.credentials.kept import KeptCredentials
from services.runtime.credentials.keys import new_ring, read_ring, write_ring
from services.runtime.nats.requests import Requests
from services.runtime.nats.streams import assert_streams, create_streams
from tests.backup import given

pytestmark = pytest.mark.anyio


async def test_the_log_comes_back_as_it_was_and_says_that_it_was_restored(
    fresh_log: NatsServer, client: Client, empty: NatsServer, tmp_path: Path
) -> None:
    await given.commits(client, 20)
    await given.batch(client, 7)
    await given.odd(client)
    await given.people(client, 5)
    done = await given.backed_up(fresh_log, tmp_path)
    files: dict[str, bytes] = {}
    result = await given.restored(empty, tmp_path, files)
    before, after = await given.in_log(fresh_log), await given.in_log(empty)
    assert given.told(after[:-1]) == given.told(before)
    assert given.chain_of(after[:-1]) == done.manifest.chain
    assert (result.seq, result.incarnation) == (len(before), 1)
    assert (await given.state(empty)) == Log(incarnation=1, restored_seq=len(before))
    assert files == given.FILES
    async with given.connected(empty) as there:
        await create_streams(there, 1)  # as setup does
        await assert_streams(there, replicas=1)
        for stream in ("ACTORS", "AUDIT", "KEYS", "WEBHOOKS"):
            assert (await there.jetstream().stream_info(stream)).state.messages == 5
        message = await there.request(
            "$JS.store.API.STREAM.MSG.GET.ACTORS", b'{"last_by_subj":"actor.k3.a3"}', timeout=5
        )
        assert msgspec.json.decode(message.data)["message"]["data"] == "cGVyc29uIDM="


async def test_credentials_come_back_with_the_keys_that_open_them_and_the_backup_shows_neither(
    fresh_log: NatsServer, client: Client, empty: NatsServer, tmp_path: Path
) -> None:
    private, folder = tmp_path / "private", tmp_path / "backup"
    write_ring(private, new_ring())
    ring, kept = read_ring(private), KeptCredentials(Requests(client))
    for value in ("canary-of-ann", "canary-that-was-deleted"):
        await kept.put("ann", value, {"key": value}, ring.public)
    await kept.remove(credential_subject("ann", "canary-that-was-deleted"))
    await given.commits(client, 2)
    await given.backed_up(fresh_log, folder, files={"keys/credentials": private.read_bytes()})
    written = b"".join(file.read_bytes() for file in folder.rglob("*") if file.is_file())
    assert b"canary" not in written
    assert private.read_bytes().strip() not in written
    files: dict[str, bytes] = {}
    await given.restored(empty, folder, files)
    brought = tmp_path / "brought"
    brought.write_bytes(files["keys/credentials"])
    async with given.connected(empty) as there:
        found = KeptCredentials(Requests(there))
        assert await found.subjects() == [credential_subject("ann", "canary-of-ann")]
        assert await found.get("ann", "canary-of-ann", read_ring(brought)) == {"key": "canary-of-ann"}
        # What was sealed to it before can be changed and deleted as ever.
        await found.remove_all_of("ann")
        assert await found.subjects() == []


async def test_each_restore_raises_the_incarnation_and_its_log_can_be_backed_up_again(
    fresh_log: NatsServer, client: Client, empty: NatsServer, tmp_path: Path
) -> None:
    await given.commits(client, 5)
    await given.backed_up(fresh_log, tmp_path / "first")
    await given.restored(empty, tmp_path / "first")
    await given.backed_up(empty, tmp_path / "second")
    await recreate_streams(fresh_log.settings(EVERYTHING))
    async with given.connected(fresh_log) as nc:
        for stream in (
            "EVENTS",
            "WANTED",
            "OBSERVED",
            "AUDIT",
            "REFUSALS",
            "SNAPSHOTS",
            "KEYS",
            "ACTORS",
            "CODE",
            "CREDENTIALS",
            "FEED",
            "WEBHOOKS",
        ):
            await nc.request(f"$JS.store.API.STREAM.DELETE.{stream}", b"", timeout=60)
    assert (await given.restored(fresh_log, tmp_path / "second")).incarnation == 2
    await recreate_streams(fresh_log.settings(EVERYTHING))


async def test_what_lives_is_refused_by_name_and_stays_as_it_is(
    fresh_log: NatsServer, client: Client, tmp_path: Path
) -> None:
    await given.commits(client, 3)
    await given.backed_up(fresh_log, tmp_path)
    await given.commits(client, 2)
    before = await given.in_log(fresh_log)
    files: dict[str, bytes] = {}
    with pytest.raises(BackupError, match="there is an installation already: the stream EVENTS exists"):
        await given.restored(fresh_log, tmp_path, files)
    assert (await given.in_log(fresh_log), files) == (before, {})


def _cut_off(folder: Path, manifest: Manifest) -> None:
    file = folder / manifest.segments[0].file
    file.write_bytes(file.read_bytes()[:-3])


def _without_files(folder: Path, manifest: Manifest) -> None:
    kept = tuple(part for part in manifest.kept if part.name != FILES)
    (folder / MANIFEST).write_bytes(encode_manifest(msgspec.structs.replace(manifest, kept=kept)))


@pytest.mark.parametrize(
    "damage",
    [(_cut_off, r"events/\S+ is damaged"), (_without_files, r"manifest.json is damaged: it lists no sealed file")],
)
async def test_a_damaged_backup_changes_nothing(
    fresh_log: NatsServer,
    client: Client,
    empty: NatsServer,
    tmp_path: Path,
    damage: tuple[Callable[[Path, Manifest], None], str],
) -> None:
    act, told = damage
    await given.commits(client, 3)
    act(tmp_path, (await given.backed_up(fresh_log, tmp_path)).manifest)
    with pytest.raises(BackupError, match=told):
        await given.restored(empty, tmp_path)
    async with given.connected(empty) as nc:
        await create_streams(nc, 1)  # there are none
        assert (await nc.jetstream().stream_info("EVENTS")).state.last_seq == 0


async def test_another_backup_does_not_go_on_with_a_restore(
    fresh_log: NatsServer, client: Client, empty: NatsServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await given.commits(client, 3)
    await given.backed_up(fresh_log, tmp_path / "one")
    await given.commits(client, 3)
    await given.backed_up(fresh_log, tmp_path / "other")

    async def cut_off(*_: object) -> None:
        raise BackupError("cut off")

    with monkeypatch.context() as broken:
        broken.setattr("services.runtime.backup.restore._Restore.log", cut_off)
        with pytest.raises(BackupError, match="cut off"):
            await given.restored(empty, tmp_path / "one")
    with pytest.raises(BackupError, match=r"another backup is being restored here, with the head 3:"):
        await given.restored(empty, tmp_path / "other")
    assert (await given.restored(empty, tmp_path / "one")).seq == 3
