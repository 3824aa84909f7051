"""Whatever is damaged in a backup is found, and named: bits, lines, segments, manifests, sealed files."""

import random
from collections.abc import Callable
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any

import msgspec
import pytest
import zstandard

from services.runtime.backup import seal
from services.runtime.backup.archive import (
    FILES,
    FORMAT,
    MANIFEST,
    NO_HASH,
    BackupError,
    Kept,
    Manifest,
    Message,
    SegmentWriter,
    encode_manifest,
    sha256,
)
from services.runtime.backup.check import Head, check, parse_head, read_manifest, unlisted
from services.runtime.backup.place import Place
from services.runtime.backup.seal import SCRYPT_N as SHIPPED_N
from services.runtime.backup.seal import Sealer, new_sealer, sealer_of
from tests.backup.given import nothing

SEGMENTS, MESSAGES = 3, 5


@cache
def a_sealer() -> Sealer:
    return new_sealer(b"a passphrase of tests")


def message(seq: int) -> Message:
    text = f'{{"commit_id":"c{seq}","events":[]}}'.encode()
    headers = {"Nats-Msg-Id": f"m{seq}", "Nats-Expected-Last-Subject-Sequence": "0"}
    return Message(seq, f"ev.tenant.t{seq % 3}", f"2026-01-02T03:04:{seq:02d}.5Z", headers, text)


def written(folder: Path, segments: int = SEGMENTS, sealer: Sealer | None = None) -> Manifest:
    sealer = sealer or a_sealer()
    place = Place(str(folder))
    place.make()
    chain, made, seq = NO_HASH, [], 0
    for _ in range(segments):
        writer = SegmentWriter(chain)
        for _ in range(MESSAGES):
            seq += 1
            writer.add(message(seq))
        segment, data = writer.finish("aaaaaaaa")
        place.write(segment.file, data)
        made.append(segment)
        chain = writer.chain
    name = "kept/files-0000-aaaaaaaa.sealed"
    sealed = place.read(name) if place.exists(name) else sealer.seal(f"{FILES}/0", b"{}")
    kept = Kept(name=FILES, part=0, file=name, bytes=len(sealed), sha256=sha256(sealed), entries=0)
    place.write(kept.file, sealed)
    manifest = Manifest(
        format=FORMAT,
        made_at=datetime(2026, 1, 2, tzinfo=UTC),
        muster="1",
        first=1,
        seq=seq,
        chain=chain.hex(),
        segments=tuple(made),
        kept=(kept,),
        sealing=sealer.sealing,
    )
    place.write(MANIFEST, encode_manifest(manifest))
    return manifest


def verified(folder: Path, head: str = "") -> None:
    place = Place(str(folder))
    check(place, read_manifest(place), nothing, parse_head(head) if head else None)


def lines_of(path: Path) -> list[bytes]:
    return zstandard.ZstdDecompressor().stream_reader(path.read_bytes()).read().splitlines(keepends=True)


def rewrite(path: Path, lines: list[bytes]) -> None:
    path.write_bytes(zstandard.compress(b"".join(lines)))


def signed_again(folder: Path, change: Callable[[Manifest], Manifest]) -> None:
    """As somebody does who knows the form, but not the head that was noted elsewhere."""
    (folder / MANIFEST).write_bytes(encode_manifest(change(read_manifest(Place(str(folder))))))


def test_a_whole_backup_is_whole(tmp_path: Path) -> None:
    manifest = written(tmp_path)
    verified(tmp_path)
    verified(tmp_path, manifest.head)
    verified(tmp_path, f"{MESSAGES}:{manifest.segments[0].chain}")
    verified(tmp_path, f"0:{'0' * 64}")


@pytest.mark.parametrize("place", ["manifest.json", "events", "kept"])
def test_a_flipped_bit_is_found_wherever_it_is(tmp_path: Path, place: str, chance: random.Random) -> None:
    written(tmp_path)
    files = [tmp_path / place] if place == MANIFEST else sorted((tmp_path / place).iterdir())
    for file in files:
        before = file.read_bytes()
        bits = range(len(before) * 8) if len(before) < 200 else chance.sample(range(len(before) * 8), 60)
        for bit in bits:
            damaged = bytearray(before)
            damaged[bit // 8] ^= 1 << bit % 8
            file.write_bytes(damaged)
            with pytest.raises(BackupError, match=f"{file.name} is damaged|{file.name} was written by a newer"):
                verified(tmp_path)
        file.write_bytes(before)
    verified(tmp_path)


@pytest.mark.parametrize("field", ["seq", "subject", "time", "headers", "data"])
def test_a_changed_field_of_a_message_is_found_though_the_file_is_packed_again(tmp_path: Path, field: str) -> None:
    manifest = written(tmp_path)
    file = tmp_path / manifest.segments[1].file
    lines = lines_of(file)
    changed = msgspec.json.decode(lines[2])
    changed[field] = {"seq": 99, "headers": {"X": "1"}}.get(field, str(changed[field]) + " ")
    lines[2] = msgspec.json.encode(changed) + b"\n"
    rewrite(file, lines)
    with pytest.raises(BackupError, match=f"{file.name} is damaged"):
        verified(tmp_path)
    # Nor does it help to name the new file in the manifest.
    data = file.read_bytes()

    def named(manifest: Manifest) -> Manifest:
        segments = list(manifest.segments)
        segments[1] = msgspec.structs.replace(segments[1], bytes=len(data), sha256=sha256(data))
        return msgspec.structs.replace(manifest, segments=tuple(segments))

    signed_again(tmp_path, named)
    if field in {"seq", "subject", "data"}:
        with pytest.raises(BackupError, match=f"{file.name} is damaged"):
            verified(tmp_path)


DAMAGES: dict[str, tuple[Callable[[Path, Manifest], None], str]] = {
    "a line is dropped": (lambda f, m: _lines(f, m, lambda lines: lines[:2] + lines[3:]), r"line 3: message 9 .* 8"),
    "a line comes twice": (
        lambda f, m: _lines(f, m, lambda lines: [*lines[:2], *lines[1:]]),
        r"line 3: message 7 .* 8",
    ),
    "two lines are swapped": (
        lambda f, m: _lines(f, m, lambda lines: [lines[1], lines[0], *lines[2:]]),
        r"line 1: message 7 .* 6",
    ),
    "a line is no message": (lambda f, m: _lines(f, m, lambda lines: [*lines[:4], b"{}\n"]), r"is damaged in line 5"),
    "the last line is cut": (
        lambda f, m: _lines(f, m, lambda lines: [*lines[:4], lines[4][:-9]]),
        r"is damaged in line",
    ),
    "a file is cut": (lambda f, m: _cut(f / m.segments[1].file), r"000000000006-\S+ is damaged"),
    "a file is empty": (
        lambda f, m: _empty(f / m.segments[1].file),
        r"000000000006-\S+ is damaged",
    ),
    "two files are swapped": (
        lambda f, m: _swap(f / m.segments[0].file, f / m.segments[1].file),
        r"000000000001-\S+ is",
    ),
    "a file is missing": (lambda f, m: (f / m.segments[1].file).unlink(), r"events/000000000006-\S+ is missing"),
    "a sealed file is missing": (lambda f, m: (f / m.kept[0].file).unlink(), r"kept/files-\S+ is missing"),
    "a sealed file is cut": (lambda f, m: _cut(f / m.kept[0].file), r"kept/files-\S+ is damaged"),
    "the manifest is missing": (lambda f, _: (f / MANIFEST).unlink(), r"holds no backup: manifest.json is missing"),
    "the manifest is cut": (lambda f, _: _cut(f / MANIFEST), r"manifest.json is damaged"),
    "a segment is left out of the manifest": (
        lambda f, _: signed_again(f, lambda m: msgspec.structs.replace(m, segments=(m.segments[0], m.segments[2]))),
        r"manifest.json is damaged: events/000000000011-\S+ does not begin at 6",
    ),
    "segments are in another order": (
        lambda f, _: signed_again(f, lambda m: msgspec.structs.replace(m, segments=m.segments[::-1])),
        r"manifest.json is damaged: events/000000000011-\S+ does not begin at 1",
    ),
    "the end is another one": (
        lambda f, _: signed_again(f, lambda m: msgspec.structs.replace(m, seq=m.seq - 1)),
        r"manifest.json is damaged: its segments do not end at its head",
    ),
    "a file of the log is elsewhere": (
        lambda f, _: signed_again(f, lambda m: _first_segment(m, file="events/../../other")),
        r"manifest.json is damaged: .*segments\[0\].file",
    ),
    "a sealed file is elsewhere": (
        lambda f, _: signed_again(f, lambda m: _first_kept(m, file="/etc/hostname")),
        r"manifest.json is damaged: .*kept\[0\].file",
    ),
    "a sequence is beyond every log": (
        lambda f, _: signed_again(f, lambda m: msgspec.structs.replace(m, first=2**63)),
        r"manifest.json is damaged: .*\$.first",
    ),
    "a hash is none": (
        lambda f, _: signed_again(f, lambda m: _first_segment(m, chain="zz")),
        r"manifest.json is damaged: .*segments\[0\].chain",
    ),
    "the way to the key is none": (
        lambda f, _: signed_again(
            f, lambda m: msgspec.structs.replace(m, sealing=msgspec.structs.replace(m.sealing, n=-1))
        ),
        r"manifest.json is damaged: .*sealing.n",
    ),
}


def _first_segment(manifest: Manifest, **changes: Any) -> Manifest:
    first, *others = manifest.segments
    return msgspec.structs.replace(manifest, segments=(msgspec.structs.replace(first, **changes), *others))


def _first_kept(manifest: Manifest, **changes: Any) -> Manifest:
    first, *others = manifest.kept
    return msgspec.structs.replace(manifest, kept=(msgspec.structs.replace(first, **changes), *others))


def _lines(folder: Path, manifest: Manifest, change: Callable[[list[bytes]], list[bytes]]) -> None:
    file = folder / manifest.segments[1].file
    rewrite(file, change(lines_of(file)))


def _cut(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-1])


def _empty(file: Path) -> None:
    file.write_bytes(b"")


def _swap(one: Path, other: Path) -> None:
    first, second = one.read_bytes(), other.read_bytes()
    one.write_bytes(second)
    other.write_bytes(first)


@pytest.mark.parametrize("damage", DAMAGES)
def test_every_damage_is_found_and_named(tmp_path: Path, damage: str) -> None:
    manifest = written(tmp_path)
    act, told = DAMAGES[damage]
    act(tmp_path, manifest)
    with pytest.raises(BackupError, match=told):
        verified(tmp_path)


def test_an_older_manifest_is_a_backup_and_not_the_one_whose_head_was_noted(tmp_path: Path) -> None:
    older = written(tmp_path, segments=2)
    text = (tmp_path / MANIFEST).read_bytes()
    newer = written(tmp_path, segments=3)
    (tmp_path / MANIFEST).write_bytes(text)
    verified(tmp_path, older.head)
    with pytest.raises(BackupError, match=r"the head differs: the backup ends at 10, before 15"):
        verified(tmp_path, newer.head)
    assert newer.segments[2].file in unlisted(Place(str(tmp_path)), read_manifest(Place(str(tmp_path))))


def test_a_log_that_was_written_anew_does_not_have_the_head(tmp_path: Path) -> None:
    """Given somebody who writes a whole backup, with hashes that fit each other."""
    head = written(tmp_path).head
    with pytest.raises(BackupError, match=r"the head differs: at 15 the hash of the backup is"):
        verified(tmp_path, head[:-1] + ("0" if head[-1] != "0" else "1"))


@pytest.mark.parametrize("text", ["", "1", "1:", "x:" + "0" * 64, "1:" + "0" * 63, "1:" + "G" * 64, "-1:" + "0" * 64])
def test_a_head_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(BackupError, match="a head is SEQUENCE:HASH"):
        parse_head(text)


def test_a_head_is_read_as_it_is_printed() -> None:
    assert parse_head("7:" + "ab" * 32) == Head(seq=7, chain="ab" * 32)


def test_a_backup_of_a_newer_program_is_refused(tmp_path: Path) -> None:
    written(tmp_path)
    signed_again(tmp_path, lambda manifest: msgspec.structs.replace(manifest, format=FORMAT + 1))
    with pytest.raises(BackupError, match=r"was written by a newer Muster \(format 2, this one knows up to 1\)"):
        verified(tmp_path)


def test_a_key_of_a_passphrase_takes_as_much_as_the_program_asks_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(seal, "SCRYPT_N", SHIPPED_N)
    made = new_sealer(b"a passphrase of tests")
    assert made.sealing.n == SHIPPED_N == 2**17, "128 MiB, and half a second"
    assert sealer_of(made.sealing, b"a passphrase of tests").key == made.key


@pytest.mark.parametrize("size", [0, 1, 1024**2 - 1, 1024**2, 1024**2 + 1, 3 * 1024**2])
def test_what_is_sealed_is_opened_again_and_nothing_of_it_can_be_left_out(size: int) -> None:
    data = bytes(n & 0xFF for n in range(size))
    sealed = a_sealer().seal("a/0", data)
    assert a_sealer().unseal("a/0", sealed) == data
    piece = 1024**2 + 16
    damaged = [sealed[:-1], sealed + b"x", sealed[:7], b"", sealed[:7] + sealed[7 + piece :], sealed[: 7 + piece]]
    for one in damaged:
        if one != sealed:
            with pytest.raises(BackupError, match="sealed as a/0 is damaged"):
                a_sealer().unseal("a/0", one)
    with pytest.raises(BackupError, match="sealed as b/0 is damaged, or is something else"):
        a_sealer().unseal("b/0", sealed)
