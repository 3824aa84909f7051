"""The program of an init container that fills a folder with what a bucket holds (`python -m services.agent.bucket URL
BUCKET FOLDER`), over the protocol of S3.

Of the standard library alone: it starts in a moment, in a container with little memory. The access key is in variables
of this process; it goes into no argument, file or message, and its secret is sent to nobody: requests are signed
(AWS Signature Version 4). Redirects are not followed, but for a bucket of AWS whose region is told.

What a server names and sends is not trusted: a file is made below the folder or not at all, and all together have
bounds of time, size and number.
"""

import contextlib
import hashlib
import hmac
import http.client
import os
import random
import ssl
import sys
import threading
import time
import xml.etree.ElementTree as ET
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Final
from urllib.parse import quote, unquote_plus, urlencode, urlsplit

from services.agent.backends.fetching import BUCKET_BYTES, KEY_ID, SECRET

BUCKET_SECONDS: Final = 600
"""For one bucket."""
MOST_OBJECTS: Final = 100_000
"""Of one bucket: each is a file, and one request."""
AT_ONCE: Final = 8
"""Objects that are fetched side by side."""
ANSWER_SECONDS: Final = 30.0
"""Until a server must have said the next part of an answer."""
TRIES: Final = 4
FIRST_PAUSE_SECONDS: Final = 0.5
"""Between tries; doubled each time."""
LATE_SECONDS: Final = 15.0
"""After its time, until the program ends itself, whatever it waits for."""
PAGE_OBJECTS: Final = 1000
LIST_BYTES: Final = 5 * 1024**2
"""Of one page of a list: a name may have a kilobyte."""
CHUNK_BYTES: Final = 1024**2
NAME_BYTES: Final = 255
"""Of one part of a path, as file systems have it."""
SAID_CHARACTERS: Final = 200
"""Of what a server says of an error."""
_AWS: Final = "s3.amazonaws.com"
_FIRST_REGION: Final = "us-east-1"
_REGION_CHARACTERS: Final = frozenset("abcdefghijklmnopqrstuvwxyz0123456789-")
_NOTHING: Final = hashlib.sha256(b"").hexdigest()
_BUSY: Final = frozenset({429, 500, 502, 503, 504})


class BucketError(Exception):
    """It cannot be fetched; the message says why, in one line."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AccessKey:
    id: str
    secret: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """An object of the bucket."""

    key: str
    size: int


class _AgainError(Exception):
    """The server may answer if it is asked again."""


class Store:
    """One bucket. Raises BucketError."""

    def __init__(self, url: str, bucket: str, key: AccessKey | None) -> None:
        parts = urlsplit(url)
        self._tls = parts.scheme == "https"
        self._host = parts.netloc
        self._path = f"{parts.path.rstrip('/')}/{bucket}"
        self._bucket = bucket
        self._key = key
        self._region: str = _FIRST_REGION
        self._own = threading.local()
        self._opened: list[http.client.HTTPConnection] = []
        self._ends = time.monotonic() + BUCKET_SECONDS

    def objects(self) -> Iterator[list[Found]]:
        """All of them, a page at a time."""
        token, count, size = "", 0, 0
        while True:
            query = {"encoding-type": "url", "list-type": "2", "max-keys": str(PAGE_OBJECTS)}
            page, token = _page(self._read(query | ({"continuation-token": token} if token else {})))
            count, size = count + len(page), size + sum(one.size for one in page)
            if count > MOST_OBJECTS:
                raise BucketError(
                    f"bucket {self._bucket} has more than {MOST_OBJECTS:,} objects, which is the most of one volume"
                )
            _in_bounds(self._bucket, size)
            yield page
            if not token:
                return

    def fetch(self, found: Found, target: Path) -> int:
        """Write it there. How many bytes that were."""
        return self._tried(lambda: self._write(found, target))

    def _read(self, query: Mapping[str, str]) -> bytes:
        def read() -> bytes:
            answer, data = self._answer(self._path, query), bytearray()
            while chunk := answer.read1(CHUNK_BYTES):
                data += chunk
                if len(data) > LIST_BYTES:
                    self._forget()
                    raise BucketError(f"a page of the list of bucket {self._bucket} has more than {LIST_BYTES:,} bytes")
                self._in_time()
            return bytes(data)

        return self._tried(read)

    def _write(self, found: Found, target: Path) -> int:
        answer, size = self._answer(f"{self._path}/{quote(found.key, safe='/-_.~')}", {}), 0
        with target.open("wb") as file:
            while chunk := answer.read1(CHUNK_BYTES):
                size += len(chunk)
                self._in_time()
                if size > found.size:
                    self._forget()
                    raise BucketError(f"object {_shown(found.key)} changed while it was fetched")
                file.write(chunk)
        if size != found.size:
            raise _AgainError(f"object {_shown(found.key)} ended after {size:,} of {found.size:,} bytes")
        return size

    def _tried[T](self, act: Callable[[], T]) -> T:
        pause = FIRST_PAUSE_SECONDS
        for left in range(TRIES - 1, -1, -1):
            self._in_time()
            try:
                return act()
            except (_AgainError, OSError, http.client.HTTPException) as error:
                self._forget()
                if isinstance(error, OSError) and error.filename is not None:
                    raise BucketError(f"{_shown(str(error.filename))} cannot be written: {error.strerror}") from error
                if not left or isinstance(error, ssl.SSLCertVerificationError):
                    said = _shown(str(error) or type(error).__name__)
                    raise BucketError(f"{self._host} does not answer as it should: {said}") from error
            time.sleep(min(pause * random.uniform(0.5, 1.0), max(self._ends - time.monotonic(), 0)))  # noqa: S311
            pause *= 2
        raise AssertionError("unreachable: the last try returns or raises")

    def _answer(self, path: str, query: Mapping[str, str]) -> http.client.HTTPResponse:
        """A good one. Its body must be read to the end, or the connection forgotten."""
        answer = self._asked(path, query)
        if answer.status == http.HTTPStatus.OK:
            return answer
        told = answer.getheader("x-amz-bucket-region") or ""
        body = answer.read(LIST_BYTES)
        self._forget()
        code, message, region = _error(body)
        if answer.status in _BUSY:
            raise _AgainError(f"{answer.status} {code}".strip())
        region = told or region
        if region and region != self._region and {*region} <= _REGION_CHARACTERS:
            self._region = region
            if self._host in {_AWS, f"s3.{_FIRST_REGION}.amazonaws.com"}:
                self._host = f"s3.{region}.amazonaws.com"
            raise _AgainError(f"bucket {self._bucket} is in region {region}")
        said = " ".join(part for part in (str(answer.status), code, message) if part)
        advice = {
            401: "; check the access key",
            403: "; check the access key, and that it may list and read the bucket",
            404: "; check the bucket's name and the address",
        }.get(answer.status, "")
        raise BucketError(f"{self._host} does not give bucket {self._bucket}: {_shown(said)}{advice}")

    def _asked(self, path: str, query: Mapping[str, str]) -> http.client.HTTPResponse:
        connection: http.client.HTTPConnection | None = getattr(self._own, "connection", None)
        if connection is None:
            make = http.client.HTTPSConnection if self._tls else http.client.HTTPConnection
            connection = self._own.connection = make(self._host, timeout=ANSWER_SECONDS)
            self._opened.append(connection)
        text = urlencode(sorted(query.items()), quote_via=quote, safe="-_.~")
        headers = signed(self._key, self._host, path, text, region=self._region, now=datetime.now(UTC))
        connection.request("GET", f"{path}?{text}" if text else path, headers=headers)
        return connection.getresponse()

    def _forget(self) -> None:
        connection: http.client.HTTPConnection | None = getattr(self._own, "connection", None)
        self._own.connection = None
        if connection is not None:
            connection.close()
            self._opened.remove(connection)

    def close(self) -> None:
        """Once no thread uses it any more."""
        for connection in self._opened:
            connection.close()

    def _in_time(self) -> None:
        if time.monotonic() > self._ends:
            raise BucketError(f"bucket {self._bucket} was not fetched within {BUCKET_SECONDS} s")


def signed(key: AccessKey | None, host: str, path: str, query: str, *, region: str, now: datetime) -> dict[str, str]:
    """Headers of a GET of this path and query, both in their encoded form, signed with AWS Signature Version 4."""
    if key is None:
        return {"Host": host}
    moment, day = now.strftime("%Y%m%dT%H%M%SZ"), now.strftime("%Y%m%d")
    headers = {"host": host, "x-amz-content-sha256": _NOTHING, "x-amz-date": moment}
    names = ";".join(headers)
    lines = "".join(f"{name}:{value}\n" for name, value in headers.items())
    request = f"GET\n{path}\n{query}\n{lines}\n{names}\n{_NOTHING}"
    scope = f"{day}/{region}/s3/aws4_request"
    text = f"AWS4-HMAC-SHA256\n{moment}\n{scope}\n{hashlib.sha256(request.encode()).hexdigest()}"
    made = f"AWS4{key.secret}".encode()
    for part in (day, region, "s3", "aws4_request"):
        made = hmac.new(made, part.encode(), hashlib.sha256).digest()
    signature = hmac.new(made, text.encode(), hashlib.sha256).hexdigest()
    said = f"AWS4-HMAC-SHA256 Credential={key.id}/{scope}, SignedHeaders={names}, Signature={signature}"
    return {"Host": host, "Authorization": said, **{name: value for name, value in headers.items() if name != "host"}}


def path_of(key: str) -> str:
    """Where an object of this key lies, below the folder. Raises BucketError where no file can have its name."""
    if not all(map(_fits, key.removesuffix("/").split("/"))):
        raise BucketError(f"object {_shown(key)} can be no file: its name has an empty part, a `..` or too long a part")
    return key


def _fits(part: str) -> bool:
    return part not in {"", ".", ".."} and "\0" not in part and len(part.encode()) <= NAME_BYTES


def fetch_all(store: Store, folder: Path, bucket: str) -> tuple[int, int]:
    """(how many files, how many bytes). Raises BucketError."""
    count = size = 0
    pool = ThreadPoolExecutor(AT_ONCE)
    try:
        for page in store.objects():
            files = [(found, target) for found in page if (target := _target(found, folder)) is not None]
            for done in pool.map(store.fetch, *zip(*files, strict=True)) if files else ():
                count, size = count + 1, size + done
                _in_bounds(bucket, size)
    finally:
        pool.shutdown(cancel_futures=True)
    return count, size


def _target(found: Found, folder: Path) -> Path | None:
    """The file that it becomes; None where it is a folder. The folders are made."""
    place = folder / path_of(found.key)
    is_folder = found.key.endswith("/")
    try:
        (place if is_folder else place.parent).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise BucketError(f"object {_shown(found.key)} can be no file: {error.strerror}") from error
    return None if is_folder else place


def _in_bounds(bucket: str, size: int) -> None:
    if size > BUCKET_BYTES:
        raise BucketError(
            f"bucket {bucket} has more than {BUCKET_BYTES // 1024**3} GiB, which is the most of one volume"
        )


def _page(data: bytes) -> tuple[list[Found], str]:
    """(objects, the token of the next page, empty after the last one)."""
    root = _xml(data)
    if root is None or not root.tag.endswith("ListBucketResult"):
        raise BucketError("the server does not answer as an object store does; check the address")
    space = root.tag.removesuffix("ListBucketResult")
    try:
        page = [
            Found(key=unquote_plus(each.findtext(f"{space}Key") or ""), size=int(each.findtext(f"{space}Size") or "0"))
            for each in root.findall(f"{space}Contents")
        ]
    except ValueError as error:
        raise BucketError("the server lists an object without a size") from error
    more = root.findtext(f"{space}IsTruncated") == "true"
    token = root.findtext(f"{space}NextContinuationToken") or ""
    if more and not (token and page):
        raise BucketError("the server lists a part of the bucket, and does not say how the rest is asked for")
    return page, token if more else ""


def _error(data: bytes) -> tuple[str, str, str]:
    """(code, message, region) of what a server says of an error; empty where it says none."""
    root = _xml(data)
    if root is None:
        return "", "", ""
    code, message, region = (root.findtext(name) or "" for name in ("Code", "Message", "Region"))
    return code, message, region


def _xml(data: bytes) -> ET.Element | None:
    """None where it is none. One with a document type could name other files, or grow without bound."""
    if b"<!" in data:
        return None
    try:
        return ET.fromstring(data)  # noqa: S314 (no document type, and of bounded size)
    except ET.ParseError:
        return None


def _shown(text: str) -> str:
    cut = text[:SAID_CHARACTERS] + ("…" if len(text) > SAID_CHARACTERS else "")
    return "".join(sign if sign.isprintable() else "?" for sign in cut)


def _give_up(bucket: str) -> None:
    """A server that says a byte now and then holds whoever reads from it."""
    sys.stderr.write(f"bucket {bucket} was not fetched within {BUCKET_SECONDS} s\n")
    sys.stderr.flush()
    os._exit(1)


def main(arguments: list[str], environment: Mapping[str, str]) -> int:
    url, bucket, folder = arguments
    key_id, secret = (environment.get(name, "").strip("\r\n") for name in (KEY_ID, SECRET))
    if any(not sign.isprintable() or sign == " " for sign in key_id):
        sys.stderr.write("the id of the access key has characters that none has; check the Secret or credential\n")
        return 1
    # The pod's own program may run as another user, and each pod may change its copy.
    os.umask(0)
    last = threading.Timer(BUCKET_SECONDS + LATE_SECONDS, _give_up, (bucket,))
    last.daemon = True
    last.start()
    key = AccessKey(id=key_id, secret=secret) if key_id else None
    try:
        with contextlib.closing(Store(url, bucket, key)) as store:
            count, size = fetch_all(store, Path(folder), bucket)
    except BucketError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    finally:
        last.cancel()
    sys.stdout.write(f"fetched {count:,} files, {size:,} bytes\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:], os.environ))
