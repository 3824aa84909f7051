"""Archives of code: the same bytes for the same content, and nothing in one reaches out of its folder."""

import io
import os
import tarfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.runtime.code import archive
from services.runtime.code.archive import ArchiveError, Entry, check, unpack, write_archive


def packed(folder: Path, *paths: str) -> bytes:
    out = io.BytesIO()
    write_archive(folder, paths, out)
    return out.getvalue()


def unpacked(data: bytes, place: Path) -> Path:
    """Beside a folder that must stay as it is."""
    place.mkdir()
    (place / "outside").mkdir()
    (place / "outside" / "kept").write_text("kept")
    (place / "code.tar").write_bytes(data)
    (place / "in").mkdir()
    unpack(place / "code.tar", place / "in")
    return place / "in"


def tar(*members: tarfile.TarInfo, content: bytes = b"", form: int = tarfile.USTAR_FORMAT) -> bytes:
    """An archive as another program makes it."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=form) as file:
        for member in members:
            member.size = len(content) if member.isreg() else 0
            file.addfile(member, io.BytesIO(content) if member.isreg() else None)
    whole = out.getvalue().rstrip(b"\0")
    return whole + bytes(-len(whole) % 512) + bytes(1024)


def member(name: str, kind: bytes = tarfile.REGTYPE, link: str = "") -> tarfile.TarInfo:
    made = tarfile.TarInfo(name)
    made.type, made.linkname = kind, link
    return made


def test_files_links_names_and_the_right_to_run_them_come_back_and_other_programs_can_read_it(tmp_path: Path) -> None:
    given = tmp_path / "given"
    (given / "src" / ("d" * 120)).mkdir(parents=True)
    (given / "train.py").write_bytes(b"print(1)\n" * 200)
    (given / "run.sh").write_text("#!/bin/sh\n")
    (given / "run.sh").chmod(0o755)
    (given / "src" / ("d" * 120) / "né.txt").write_text("long")
    (given / "empty").touch()
    (given / "src" / "up").symlink_to("../train.py")
    names = ["train.py", "run.sh", f"src/{'d' * 120}/né.txt", "empty", "src/up"]
    data = packed(given, *names)
    made = unpacked(data, tmp_path / "made")
    assert {path: (made / path).read_bytes() for path in names} == {path: (given / path).read_bytes() for path in names}
    assert os.access(made / "run.sh", os.X_OK)
    assert not os.access(made / "train.py", os.X_OK)
    assert (made / "src" / "up").readlink() == Path("../train.py")
    with tarfile.open(fileobj=io.BytesIO(data)) as read:
        assert sorted(read.getnames()) == sorted(names)


def test_the_same_content_is_the_same_archive_whatever_its_times_order_and_owner(tmp_path: Path) -> None:
    for name, times in (("a", (1, 1)), ("b", (10**9, 10**9))):
        (tmp_path / name).mkdir()
        for file in ("x", "y") if name == "a" else ("y", "x"):
            (tmp_path / name / file).write_text(file)
            (tmp_path / name / file).chmod(0o600 if name == "a" else 0o664)
            os.utime(tmp_path / name / file, times)
    assert packed(tmp_path / "a", "x", "y") == packed(tmp_path / "b", "y", "x")


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (tar(member("../outside/kept"), content=b"x"), "is not one of the folder"),
        (tar(member("/etc/passwd"), content=b"x"), "is not one of the folder"),
        (tar(member("a/../../b"), content=b"x"), "is not one of the folder"),
        (tar(member("./a"), content=b"x"), "is not one of the folder"),
        (tar(member("a", tarfile.LNKTYPE, "code.tar")), "not a file, a folder or a link"),
        (tar(member("a", tarfile.CHRTYPE)), "not a file, a folder or a link"),
        (tar(member("a", tarfile.FIFOTYPE)), "not a file, a folder or a link"),
        (tar(member("n" * 300), content=b"x", form=tarfile.GNU_FORMAT), "is not an archive of code"),
        (tar(member("n" * 300), content=b"x", form=tarfile.PAX_FORMAT), "not a file, a folder or a link"),
        (tar(member("a", tarfile.SYMTYPE, "/etc")), "may lead out of the folder"),
        (tar(member("a", tarfile.SYMTYPE, "..")), "may lead out of the folder"),
        (tar(member("a/b", tarfile.SYMTYPE, "../../outside")), "may lead out of the folder"),
        (tar(member("l", tarfile.SYMTYPE, "d/up/../..")), "may lead out of the folder"),
        (tar(member("a", tarfile.SYMTYPE, "in"), member("a/kept"), content=b"x"), "twice"),
        (tar(member("a"), member("a"), content=b"x"), "twice"),
        (tar(member("a"), member("a/b"), content=b"x"), "is below an entry that is not a folder"),
        (tar(member("a/b"), member("a"), content=b"x"), "twice"),
        (
            tar(
                member("a", tarfile.SYMTYPE, "."),
                member("a/a/a/l", tarfile.SYMTYPE, "../../.."),
                member("l/outside/x"),
                content=b"x",
            ),
            "is below an entry that is not a folder",
        ),
        (tar(member("a"), content=b"x")[:-1024], "ends too early"),
        (tar(member("a"), content=b"x") + b"more", "after its end"),
        (tar(member("a"), content=b"x" * 600)[:700], "it ends within"),
        (b"", "ends too early"),
        (b"\x1f\x8b" + bytes(600), "is not an archive of code"),
        (tar(member("d/" * 70 + "f"), content=b"x"), "too long"),
    ],
)
def test_what_is_no_archive_of_ours_or_reaches_out_of_its_folder_is_refused(
    tmp_path: Path, data: bytes, said: str
) -> None:
    with pytest.raises(ArchiveError, match=said):
        unpacked(data, tmp_path / "place")
    with pytest.raises(ArchiveError, match=said):
        check(io.BytesIO(data))
    assert [path.name for path in (tmp_path / "place" / "outside").iterdir()] == ["kept"]
    assert (tmp_path / "place" / "outside" / "kept").read_text() == "kept"


def test_a_link_that_stands_where_a_file_is_written_is_not_followed(tmp_path: Path) -> None:
    """Given a folder that somebody else wrote into."""
    (tmp_path / "outside").mkdir()
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "src").symlink_to(tmp_path / "outside")
    (tmp_path / "code.tar").write_bytes(tar(member("src/a"), content=b"x"))
    with pytest.raises((ArchiveError, OSError)):
        unpack(tmp_path / "code.tar", tmp_path / "in")
    assert list((tmp_path / "outside").iterdir()) == []


def test_no_more_files_than_the_limit_are_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archive, "MAX_ENTRIES", 3)
    files = [member(str(number)) for number in range(4)]
    with pytest.raises(ArchiveError, match="more than 3 files"):
        unpacked(tar(*files), tmp_path / "place")


def test_no_more_folders_than_the_limit_are_made_whatever_few_bytes_name_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(archive, "MAX_ENTRIES", 5)
    few = unpacked(tar(member("a/b/c/d/one"), member("a/b/c/d/two"), member("a/b/c/e/one")), tmp_path / "few")
    assert len([*few.rglob("*")]) == 5 + 3
    many = tar(member("a/b/c/one"), member("d/e/f/one"))
    with pytest.raises(ArchiveError, match="more than 5 folders"):
        unpacked(many, tmp_path / "many")
    with pytest.raises(ArchiveError, match="more than 5 folders"):
        check(io.BytesIO(many))
    (tmp_path / "d" / "e" / "f" / "g" / "h" / "i").mkdir(parents=True)
    (tmp_path / "d" / "e" / "f" / "g" / "h" / "i" / "file").touch()
    with pytest.raises(ArchiveError, match="more than 5 folders"):
        packed(tmp_path, "d/e/f/g/h/i/file")


@pytest.mark.parametrize(
    ("path", "link"), [("out", "/etc/passwd"), ("out", "../x"), ("d/out", "../../x"), ("out", "d/../../x")]
)
def test_a_link_out_of_the_folder_is_not_sent(tmp_path: Path, path: str, link: str) -> None:
    (tmp_path / "d").mkdir()
    (tmp_path / path).symlink_to(link)
    with pytest.raises(ArchiveError, match="may lead out of the folder"):
        packed(tmp_path, path)


def test_what_is_neither_a_file_nor_a_link_is_not_sent(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(ArchiveError, match="neither a file nor a link"):
        packed(tmp_path, "pipe")


@given(data=st.binary(max_size=3000), at=st.integers(0, 2000), change=st.binary(min_size=1, max_size=40))
def test_any_bytes_are_refused_or_stay_inside(
    tmp_path_factory: pytest.TempPathFactory, data: bytes, at: int, change: bytes
) -> None:
    """Random bytes, and a sound archive with some of its bytes changed."""
    sound = tar(member("a/b"), member("l", tarfile.SYMTYPE, "a/b"), content=b"x" * 600)
    for given_bytes in (data, sound[:at] + change + sound[at + len(change) :]):
        place = tmp_path_factory.mktemp("any") / "place"
        try:
            made = unpacked(given_bytes, place)
        except ArchiveError:
            with pytest.raises(ArchiveError):
                check(io.BytesIO(given_bytes))
            continue
        except OSError:
            continue
        check(io.BytesIO(given_bytes))
        for found in made.rglob("*"):
            assert found.resolve().is_relative_to(made)
        assert sorted(path.name for path in place.iterdir()) == ["code.tar", "in", "outside"]


def test_an_entry_is_checked_as_it_is_read() -> None:
    with pytest.raises(ArchiveError):
        archive.check_entry(Entry(path="a\0b", kind=b"0"))
