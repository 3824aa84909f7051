"""What a bucket holds comes into a folder, over the protocol of S3: from a server that speaks it, and from one that
lies.
"""

import contextlib
import io
import threading
from collections.abc import Callable, Generator, Iterator
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, quote, urlsplit

import httpx
import pytest
from moto.server import ThreadedMotoServer

from services.agent import bucket
from services.agent.backends.fetching import KEY_ID, SECRET
from services.agent.bucket import AccessKey, signed

MARK = "a-secret-that-stands-nowhere"
ACCESS = {KEY_ID: "AKIDEXAMPLE", SECRET: MARK}


def fetched(url: str, folder: Path, environment: dict[str, str] | None = None) -> tuple[int, str]:
    """(exit code, what was said)."""
    said = io.StringIO()
    with contextlib.redirect_stderr(said), contextlib.redirect_stdout(said):
        code = bucket.main([url, "sets", str(folder)], ACCESS if environment is None else environment)
    assert MARK not in said.getvalue()
    return code, said.getvalue().strip()


def files_in(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.fixture(scope="module")
def store() -> Iterator[str]:
    """With the bucket `sets`."""
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    url = f"http://{host}:{port}"
    httpx.post(f"{url}/moto-api/reset", trust_env=False).raise_for_status()
    httpx.put(f"{url}/sets", trust_env=False).raise_for_status()
    yield url
    server.stop()


def test_all_that_a_bucket_holds_becomes_files(store: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """S058. Whatever names objects have, and over many pages of the list."""
    monkeypatch.setattr(bucket, "PAGE_OBJECTS", 2)
    wanted = {
        "train/part 1.csv": b"1,2\n" * 100_000,
        "train/größe+50%.csv": b"3",
        "train/deep/er/a&b<c>.txt": b"4",
        "empty": b"",
        "eval?x=1#y": b"5",
    }
    for name, data in wanted.items():
        httpx.put(f"{store}/sets/{quote(name)}", content=data, trust_env=False).raise_for_status()
    httpx.put(f"{store}/sets/marker/", content=b"", trust_env=False).raise_for_status()
    code, said = fetched(store, tmp_path)
    assert code == 0, said
    assert files_in(tmp_path) == wanted
    assert (tmp_path / "marker").is_dir()
    assert all(path.stat().st_mode & 0o666 == 0o666 for path in tmp_path.rglob("*")), "the pod's own program has them"


def test_a_bucket_that_is_not_there_is_told_in_one_sentence(store: str, tmp_path: Path) -> None:
    said = io.StringIO()
    with contextlib.redirect_stderr(said):
        assert bucket.main([store, "nobodys", str(tmp_path)], ACCESS) == 1
    assert "does not give bucket nobodys: 404 NoSuchBucket" in said.getvalue()
    assert said.getvalue().count("\n") == 1


def test_requests_are_signed_as_the_examples_of_the_protocol_are() -> None:
    """From its documentation: GET Bucket (List Objects)."""
    key = AccessKey(id="AKIAIOSFODNN7EXAMPLE", secret="wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY")
    now = datetime(2013, 5, 24, tzinfo=UTC)
    found = signed(key, "examplebucket.s3.amazonaws.com", "/", "max-keys=2&prefix=J", region="us-east-1", now=now)
    assert found["Authorization"].endswith("34b48302e7b5fa45bde8084f4b7868a86f0a534bc59db6670ed5711ef69dc6f7")
    assert key.secret not in str(found)
    assert signed(None, "h", "/", "", region="us-east-1", now=now) == {"Host": "h"}, "nobody's requests are not signed"


# -- servers that lie ------------------------------------------------------------------------------------------------

type Answer = tuple[int, bytes] | tuple[int, bytes, dict[str, str]]
type Says = Callable[[str, dict[str, list[str]], Any], Answer]


@contextlib.contextmanager
def serving(says: Says) -> Generator[tuple[str, list[str]]]:
    """A server that answers so, and the requests that it got."""
    asked: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            asked.append(self.path)
            parts = urlsplit(self.path)
            status, body, *more = says(parts.path, parse_qs(parts.query), self.headers)
            self.send_response(status)
            headers = {"Content-Length": str(len(body)), **(more[0] if more else {})}
            for name, value in headers.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 (the library's name)
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", asked
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def listing(*keys: str, size: int = 1, more: str = "") -> bytes:
    contents = "".join(f"<Contents><Key>{key}</Key><Size>{size}</Size></Contents>" for key in keys)
    return f'<ListBucketResult xmlns="http://s3.amazonaws.com/doc/2006-03-01/">{contents}{more}</ListBucketResult>'.encode()


def answers(listed: bytes, body: bytes = b"x") -> Says:
    return lambda path, query, headers: (200, listed if "list-type" in query else body)


def error(code: str, message: str = "no", more: str = "") -> bytes:
    return f"<Error><Code>{code}</Code><Message>{message}</Message>{more}</Error>".encode()


LIES: dict[str, tuple[Says, str]] = {
    "a name that climbs": (answers(listing("../../etc/passwd")), "can be no file"),
    "a name that climbs in the middle": (answers(listing("a/%2E%2E/%2E%2E/b")), "can be no file"),
    "a name from the root": (answers(listing("/etc/passwd")), "can be no file"),
    "a name with an empty part": (answers(listing("a//b")), "can be no file"),
    "a name with a zero": (answers(listing("a%00b")), "can be no file"),
    "a part that is too long": (answers(listing("a" * 256)), "can be no file"),
    "a file and a folder of one name": (answers(listing("a", "a/b")), "Is a directory"),
    "more bytes than listed": (answers(listing("a", size=1), b"xy"), "changed while it was fetched"),
    "fewer bytes than listed": (answers(listing("a", size=2), b"x"), "ended after 1 of 2 bytes"),
    "more than fits": (answers(listing("a", "b", size=6 * 1024**3)), "more than 10 GiB"),
    "a size that is none": (answers(listing("a").replace(b">1<", b">many<")), "without a size"),
    "a list without an end": (
        lambda path, query, headers: (
            200,
            listing("a", more="<IsTruncated>true</IsTruncated><NextContinuationToken>t</NextContinuationToken>")
            if "list-type" in query
            else b"x",
        ),
        "more than 3 objects",
    ),
    "more, and nobody says how": (answers(listing("a", more="<IsTruncated>true</IsTruncated>")), "does not say how"),
    "a page of the web": (answers(b"<html><body>hello</body></html>"), "as an object store does"),
    "no page at all": (answers(b"hello"), "as an object store does"),
    "entities": (answers(b'<!DOCTYPE x [<!ENTITY a "aaaa">]><ListBucketResult>&a;</ListBucketResult>'), "object store"),
    "a page that is too long": (answers(b"x" * 3000), "more than 2,048 bytes"),
    "a redirect": (lambda path, query, headers: (307, b"", {"Location": "http://169.254.169.254/"}), "307"),
    "a key that is not known": (
        lambda path, query, headers: (403, error("InvalidAccessKeyId", f"{'long ' * 100}\n")),
        "403 InvalidAccessKeyId long",
    ),
    "a server that is busy for ever": (lambda path, query, headers: (503, error("SlowDown")), "503 SlowDown"),
}


@pytest.mark.parametrize("name", LIES)
def test_a_server_that_lies_makes_no_file_elsewhere_and_is_told_of_in_one_line(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for setting, value in (("MOST_OBJECTS", 3), ("FIRST_PAUSE_SECONDS", 0.001), ("LIST_BYTES", 2048)):
        monkeypatch.setattr(bucket, setting, value)
    says, told = LIES[name]
    folder = tmp_path / "inner" / "folder"
    folder.mkdir(parents=True)
    with serving(says) as (url, asked):
        code, said = fetched(url, folder)
    assert (code, "\n" in said) == (1, False), said
    assert told in said
    assert len(said) < 500
    assert not any(path.is_file() for path in tmp_path.iterdir()), "nothing beside the folder"
    assert len(asked) < 20


def test_what_fails_once_is_asked_again_and_a_bucket_elsewhere_in_its_region(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bucket, "FIRST_PAUSE_SECONDS", 0.001)
    told: list[str] = []

    def says(path: str, query: dict[str, list[str]], headers: Any) -> Answer:
        told.append(headers["Authorization"])
        if len(told) == 1:
            return 500, b"not now"
        if "/eu-central-1/s3/" not in told[-1]:
            return 400, error("AuthorizationHeaderMalformed", more="<Region>eu-central-1</Region>")
        return 200, listing("a") if "list-type" in query else b"x"

    with serving(says) as (url, _):
        assert fetched(url, tmp_path)[0] == 0
    assert files_in(tmp_path) == {"a": b"x"}
    assert not any(MARK in one for one in told)


def test_a_server_that_never_ends_its_answer_ends_with_its_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bucket, "BUCKET_SECONDS", 0.3)
    monkeypatch.setattr(bucket, "ANSWER_SECONDS", 0.1)
    headers = {"Content-Length": "1000"}
    with serving(lambda path, query, given: (200, b"<ListBucket", headers)) as (url, _):
        code, said = fetched(url, tmp_path)
    assert code == 1
    assert "not fetched within" in said or "does not answer" in said


def test_an_access_key_that_is_none_is_told_without_its_value(tmp_path: Path) -> None:
    code, said = fetched("http://127.0.0.1:1", tmp_path, {KEY_ID: f"{MARK}\r\nX-Evil: 1", SECRET: MARK})
    assert code == 1
    assert "characters that none has" in said
