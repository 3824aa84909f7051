"""The HTTP API, as this command line calls it: one method per way of calling, retries, and errors as Problems.

Holds no knowledge of output. Only commands that call the API import this.
"""

import json
import os
import re
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from shlex import quote
from typing import Final
from uuid import uuid4

from muster.cli.exits import ExitCode, Problem, exit_code_of
from muster.cli.http import BadUrlError, Http, Parameters, Response, Stream, TlsError, TransportError
from muster.cli.values import Json, Row, parse_time, rows_of, text_of

API_PREFIX: Final = "/api/v1"
RETRY_WAITS_SECONDS: Final = (0.2, 0.5, 1.0, 2.0)
"""Waits between attempts: a restart of one process of `muster up` takes a second or two."""
JITTER: Final = 0.25
"""Share of a wait that is left to chance, so that many clients do not come back together."""
MOST_RETRY_AFTER_SECONDS: Final = 5.0
"""A server may ask for more; a person rather gets the answer that it is away."""
PAGE_ROWS: Final = 500
"""The most that one page may hold."""

_IDEMPOTENCY_KEY: Final = re.compile(r"^[!-~]{1,255}\Z")
"""As the API has it: of another one, not all could even be sent."""
_RETRIED: Final = frozenset({429, 502, 503, 504})

NOT_FOUND: Final = 404
TOO_MANY: Final = 429
"""At a limit nothing is begun: there is no outcome that one could not know."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What the API said to a request that it took."""

    status: int
    body: Row
    sequence: int | None
    """X-Log-Sequence: how far the log had come, what a later read can ask for by min_seq."""
    version: int | None
    """X-Version: of the one thing that was read or changed, where it has one; what `if_match` takes."""
    request_id: str | None
    date: str | None
    server: str | None


class Api:
    """One API and who we are there."""

    def __init__(
        self,
        url: str,
        token: str,
        *,
        ca_file: str = "",
        talk: Callable[[str], None] = lambda _text: None,
        waits_seconds: Sequence[float] = RETRY_WAITS_SECONDS,
        as_of: str | None = None,
    ) -> None:
        self.url = url
        self.as_of = as_of
        """Moment of the past that is asked about, as the API takes it."""
        self._past: Parameters = [("as_of", as_of)] if as_of else []
        """What makes every read one of the past."""
        self._moment: datetime | None = None
        self.flags: Mapping[str, str] = {}
        """Of a request that flags made: by field, the flag that gave it. Refusals name it."""
        self._talk = talk
        self._waits_seconds: Sequence[float] = waits_seconds
        headers = {"Accept": "application/json", "User-Agent": "muster-cli"}
        if token:
            headers["Authorization"] = f"Bearer {token}"
        try:
            self._http = Http(url, headers, ca_file=ca_file)
        except BadUrlError as error:
            raise self._no_url(error) from error

    def close(self) -> None:
        self._http.close()

    @contextmanager
    def asked_once(self) -> Generator[None]:
        """What is called meanwhile is sent once: whoever calls asks again for themselves (muster.cli.outage)."""
        waits_seconds: Sequence[float] = self._waits_seconds
        self._waits_seconds = ()
        try:
            yield
        finally:
            self._waits_seconds = waits_seconds

    def moment(self) -> datetime:
        """The time that the answers are of: where they are of the past, as the first of them said."""
        return self._moment or datetime.now(UTC)

    def get(self, path: str, parameters: Parameters = ()) -> Row:
        """One object. Raises Problem."""
        return self.read(path, parameters).body

    def read(self, path: str, parameters: Parameters = ()) -> Answer:
        """One object with what the headers said."""
        response = self._call("GET", API_PREFIX + path, parameters=[*parameters, *self._past])
        if self._past and self._moment is None:
            self._moment = parse_time(response.headers.get("X-As-Of", ""))
        return _answer(response)

    def plain(self, path: str) -> Answer:
        """An object outside of /api/v1, such as /openapi.json."""
        return _answer(self._call("GET", path))

    def check(self, path: str, parameters: Parameters = ()) -> None:
        """Whether this would be answered; what with does not matter. Raises Problem where it would not."""
        self._call("GET", API_PREFIX + path, parameters=parameters)

    def examine(self, path: str, body: Row, parameters: Parameters = ()) -> Row:
        """What the API says of something that it does not store. Raises Problem."""
        return _answer(self._call("POST", API_PREFIX + path, parameters=parameters, body=body)).body

    def mutate(
        self,
        method: str,
        path: str,
        body: Row | None = None,
        *,
        parameters: Parameters = (),
        idempotency_key: str | None = None,
        if_match: int | None = None,
    ) -> Answer:
        """A change. Repeated with the same Idempotency-Key until the outcome is known, or the waits are spent."""
        if idempotency_key is not None and not _IDEMPOTENCY_KEY.match(idempotency_key):
            told = "must be 1 to 255 printable ASCII characters without spaces"
            raise Problem(f"--idempotency-key: {told}, got {idempotency_key[:80]!a}", code=ExitCode.USAGE)
        headers = {"Idempotency-Key": idempotency_key or str(uuid4())}
        if if_match is not None:
            headers["If-Match"] = str(if_match)
        return _answer(self._call(method, API_PREFIX + path, parameters=parameters, body=body, headers=headers))

    def pages(
        self,
        path: str,
        key: str,
        parameters: Parameters = (),
        *,
        most: int = 0,
        at_once: int | None = None,
        offset: int = 0,
    ) -> tuple[list[Row], bool]:
        """The rows of a paged list from `offset` on, and whether there are more than `most` (0: no bound). Of what came
        into the list between two pages, none is there twice.
        """
        rows: list[Row] = []
        seen: set[str] = set()
        begin: int | None = offset
        while begin is not None:
            size = at_once or PAGE_ROWS
            size = min(size, most - len(rows)) if most else size
            page = self.get(path, [*parameters, ("offset", begin), ("limit", size)])
            for row in rows_of(page, key):
                identifier = text_of(row, "id")
                if not identifier or identifier not in seen:
                    rows.append(row)
                    seen.add(identifier)
            following = page.get("next")
            begin = following if isinstance(following, int) else None
            if most and len(rows) >= most:
                return rows[:most], begin is not None or len(rows) > most
        return rows, False

    @contextmanager
    def stream(self, path: str, parameters: Parameters = (), *, accept: str = "*/*") -> Generator[Stream]:
        """An answer that comes piece by piece, with no limit between the pieces. Raises Problem where it is refused."""
        begun = False
        try:
            with self._http.stream(API_PREFIX + path, parameters, {"Accept": accept}) as answer:
                if isinstance(answer, Response):
                    raise problem_of(answer)
                begun = True
                yield answer
        except BadUrlError as error:
            raise self._no_url(error) from error
        except TransportError as error:
            if begun:
                raise self._broken_off(error) from error
            raise self._unreachable(error) from error

    def _call(
        self,
        method: str,
        path: str,
        *,
        parameters: Parameters = (),
        body: Row | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> Response:
        """Every call here may be repeated: reads by nature, changes by their Idempotency-Key."""
        lost: TransportError | None = None
        response: Response | None = None
        told = False
        content = None if body is None else json.dumps(body, ensure_ascii=False, allow_nan=False).encode()
        more = {} if content is None else {"Content-Type": "application/json"}
        for wait in (*self._waits_seconds, None):
            asked: float | None = None
            try:
                response = self._http.request(
                    method, path, parameters=parameters, body=content, headers={**more, **(headers or {})}
                )
            except TlsError as error:
                raise self._unreachable(error) from error
            except TransportError as error:
                lost, response = error, None
            except BadUrlError as error:
                raise self._no_url(error) from error
            else:
                if response.status not in _RETRIED:
                    break
                asked = _retry_after(response)
            if wait is None or (asked is not None and asked > MOST_RETRY_AFTER_SECONDS):
                break
            if not told:
                told = True
                self._talk(f"{_why_not(response) or f'{self.url} does not answer'}; trying again")
            time.sleep(max(asked or 0.0, wait * (1 + JITTER * os.urandom(1)[0] / 255)))
        if response is None:
            assert lost is not None
            raise self._unreachable(lost, (headers or {}).get("Idempotency-Key"))
        if response.is_error:
            raise problem_of(response, (headers or {}).get("Idempotency-Key"), self.flags)
        return response

    def _no_url(self, error: BadUrlError) -> Problem:
        return Problem(f"{self.url!r} is not a valid URL: {error}", code=ExitCode.USAGE)

    def _broken_off(self, error: TransportError) -> Problem:
        return Problem(
            f"Muster at {self.url} closed the connection before the answer was complete",
            why=(str(error),),
            todo="try again; if it fails again, `muster doctor` shows whether the server runs",
            code=ExitCode.UNREACHABLE,
        )

    def _unreachable(self, error: TransportError, idempotency_key: str | None = None) -> Problem:
        why = [str(error)]
        if isinstance(error, TlsError):
            # Not UNREACHABLE: whoever waits for a server that is away would ask again and again.
            return Problem(f"cannot reach Muster at {self.url}", why=tuple(why), todo=error.todo, code=ExitCode.FAILURE)
        if idempotency_key is not None and error.sent:
            why.append("the request may have been carried out")
        todo = "is it running? `muster up` starts one here; `muster context list` shows which one is asked"
        if idempotency_key is not None and error.sent:
            todo = _repeat(idempotency_key)
        return Problem(f"cannot reach Muster at {self.url}", why=tuple(why), todo=todo, code=ExitCode.UNREACHABLE)


_CODE: Final = re.compile(r"[a-z]+(_[a-z]+)+")
_STATUS_TODO: Final[dict[int, str]] = {
    401: "get a new token (`muster token create --user U`) and keep it (`muster login`)",
    403: "`muster doctor` shows your roles; an administrator can bind another",
    404: "`muster workload list -A` shows what you may see; with --deleted also what is gone",
    412: "read it again and repeat",
    429: "wait a little and repeat",
    502: "what stands before Muster cannot reach it: is it running? Repeat in a moment",
    503: "repeat in a moment; `muster doctor` looks for the cause",
    504: "what stands before Muster got no answer from it in time: repeat in a moment",
}


def problem_of(
    response: Response, idempotency_key: str | None = None, flags: Mapping[str, str] | None = None
) -> Problem:
    """The API's refusal in words, with the exit code that belongs to it. Args: flags, that gave fields, by field."""
    body = _body(response)
    status = response.status
    issues = body.get("complianceIssues")
    why = (
        [told_issue(issue, response.path, flags) for issue in issues if isinstance(issue, dict)]
        if isinstance(issues, list)
        else []
    )
    details = text_of(body, "details")
    if details and not why and details != "not_found":
        why.append(f"code: {details}" if _CODE.fullmatch(details) else details)
    message = text_of(body, "message") or f"the server answered {status} {response.reason}".rstrip()
    if isinstance(issues, list) and len(issues) == 1 and why and _is_whole(message, issues[0]):
        # What is wrong with one field is the whole message: once is enough, in the words that name the flag.
        message, why = why[0], []
    code = ExitCode.FAILURE if details == "https_needed" else exit_code_of(status)
    if code is ExitCode.REJECTED and _is_name_conflict(body):
        code = ExitCode.CONFLICT
    if details == "budget_exhausted":
        code = ExitCode.REJECTED
    if code is ExitCode.UNREACHABLE:
        why.append(f"so says {response.base}")
    todo = _todo(status, details, response)
    if idempotency_key is not None and code is ExitCode.UNREACHABLE and status != TOO_MANY:
        todo = _repeat(idempotency_key)
    return Problem(
        message,
        why=tuple(why),
        todo=todo,
        code=code,
        request_id=response.headers.get("X-Request-Id"),
        refusal=details,
    )


def _repeat(idempotency_key: str) -> str:
    return f"repeat with --idempotency-key {quote(idempotency_key)}: it is then done once at most"


def _todo(status: int, details: str, response: Response) -> str | None:
    if details == "https_needed":
        return f"--url https://{response.base.partition('://')[2]}; the token went over the line in plain text"
    if details == "too_many_workloads":
        return "`muster workload list -p PROJECT` shows them: delete what is not needed, or wait until some have ended"
    if details in {"workload_finished", "workload_deleted"}:
        return "`muster training resubmit NAME` makes a new one of the same request"
    if details == "cluster_not_empty":
        return "`muster cluster remove NAME --force` removes it at once, with them"
    if details == "read_only":
        return "give the command without `--context`, or with that of a Muster that runs: `muster context list`"
    if details == "not_in_sandbox":
        return "give the command without `--context` to ask the Muster that runs"
    if details == "no_such_run":
        return "`muster workload pods NAME` lists attempts and runs"
    if status == NOT_FOUND and "/workloads" not in response.path:
        return None
    return _STATUS_TODO.get(status)


def _is_whole(message: str, issue: Json) -> bool:
    """Whether a message says no more than its one issue."""
    if not isinstance(issue, dict):
        return False
    details = text_of(issue, "details")
    return message in {details, f"{text_of(issue, 'field')}: {details}"}


def _why_not(response: Response | None) -> str:
    """What a server that is there says instead of an answer; empty where there was none."""
    if response is None:
        return ""
    return text_of(_body(response), "message") or f"the server answered {response.status}"


_VARIABLE_SOURCES: Final = {
    "userCredential": "credential",
    "secret": "secret",
    "configMap": "config-map",
    "podFieldRef": "pod-field",
}
_OTHER_FLAGS: Final = {
    "nodePools": "--node-pools",
    "nodeTypes": "--node-types",
    "gpuQuota": "--gpu-quota",
    "gpuLimit": "--gpu-limit",
    "nodePoolQuotas": "--pool-quota",
    "overQuotaWeight": "--over-quota-weight",
    "minimumRuntimeSeconds": "--minimum-runtime",
    "clusterLostSeconds": "--cluster-lost-after",
    "timeLimits.runtimeSeconds": "--runtime",
    "timeLimits.idleGpuSeconds": "--idle-gpu",
    "timeLimits.pendingSeconds": "--pending",
    **{
        f"{spec}.environmentVariables.{field}{part}": f"--{of_master}environment-{flag}"
        for spec, of_master in (("spec", ""), ("masterSpec", "master-"))
        for field, flag in _VARIABLE_SOURCES.items()
        for part in ("", ".name", ".key", ".path")
    },
    "departmentId": "--department",
    "spec.servingPort": "--serving-port",
    "podSecurity": "--pod-security",
    "privileged": "--privileged",
    "priorityClass": "--priority",
    "autoDeletionTimeAfterCompletionSeconds": "--auto-deletion-time-after-completion",
    "simulatedNodes": "--simulated or --nodes",
    "labelKey": "--label",
    "labelValue": "--label",
    "filterBy": "--filter",
    "labelSelector": "--selector",
    "sortBy": "--sort",
    "offset": "--offset",
    "metricType": "--type",
    **{name: f"--{name}" for name in ("search", "since", "tail", "pod", "previous", "attempt", "run", "actor", "type")},
    "subjectId": "USER",
    "roleName": "ROLE",
    "as_of": "--as-of",
    "from": "--from",
    "to": "--to",
    "types": "--type",
    "fromTime": "--from-time",
    "fromSequence": "--from-seq",
    "Idempotency-Key": "--idempotency-key",
    "If-Match": "--if-match",
}
"""As FLAG_OF_FIELD, of the other commands; of queries, by the parameter. Of items of lists by the whole path, without
numbers, or by that of the list."""
_ONLY_WHERE: Final = re.compile(r"is possible only where (\w+) is (\w+)\Z")
_NODE_FLAGS: Final = {
    "cpuCores": "--cpu-cores",
    "memoryBytes": "--memory",
    "gpus": "--gpus",
    "gpuModel": "--gpu-model",
    "gpuMemoryBytes": "--gpu-memory",
    "labels": "--label",
    "taints": "--taint",
    "extendedResources": "--extended-resource",
    "nodePool": "--pool",
    "names": "NODE",
}
"""Of nodes of simulated clusters, by the first word of the path below them."""
_CALENDAR_FLAGS: Final = {
    "startsAt": "--from",
    "endsAt": "--to",
    "nodes": "--node",
    "nodePools": "--pool",
    "labels": "--label",
    "leadSeconds": "--lead",
    "force": "--force",
    "projectId": "--for",
    "departmentId": "--for-department",
    "workloadLabels": "--for-label",
    "nodeCount": "--node-count",
    "exact": "--exact",
    "weekly": "--weekly",
    "gpus": "--gpus",
    "name": "NAME",
    "zone": "--zone",
    "windows": "WINDOW",
    "endsRunning": "--ends-running",
    "overQuotaOnly": "--over-quota-only",
}
"""Of maintenance, reservations and windows, by the first word of the path."""
_NAMED_BY_FLAG: Final = ("/webhooks", "/subscriptions")
"""Ends of paths whose commands take a name as a flag, and not as an argument."""


def told_issue(issue: Mapping[str, Json], asked: str = "", flags: Mapping[str, str] | None = None) -> str:
    """What is wrong with a field, and the flag that gave it, or would.

    Args:
        asked: the path of the request.
        flags: that gave fields, by field.
    """
    from muster.cli.training_flags import FLAG_OF_FIELD
    from muster.cli.typed import flag_of

    path = str(issue.get("field", ""))
    field = path.split("[", maxsplit=1)[0]
    whole = re.sub(r"\[\d+\]", "", path)
    flag = _OTHER_FLAGS.get(whole) or FLAG_OF_FIELD.get(field) or _OTHER_FLAGS.get(field)
    if "/nodes" in asked or whole.startswith("simulatedNodes."):
        flag = _NODE_FLAGS.get(re.split(r"[.\[]", re.sub(r"^(nodes|simulatedNodes)\[\d+\]\.", "", path))[0], flag)
    if "/calendar/" in asked or asked.endswith("/start-windows"):
        flag = _CALENDAR_FLAGS.get(field, flag)
    if field == "name" and asked.endswith(_NAMED_BY_FLAG):
        flag = "--name"
    flag = flag_of(path, flags or {}) or flag
    where = f"{path} ({flag})" if flag else path
    details = str(issue.get("details", ""))
    if field == "endsAt" and flag == _CALENDAR_FLAGS["endsAt"]:
        details = details.replace(" startsAt", f" startsAt ({_CALENDAR_FLAGS['startsAt']})")
    if flag and (other := _ONLY_WHERE.search(details)) and (needed := FLAG_OF_FIELD.get(f"spec.compute.{other[1]}")):
        details += f": {needed} {other[2]}"
    return f"{where}: {details}" if where else details


def _is_name_conflict(body: Row) -> bool:
    """A name that is taken is a conflict (exit 5), though the contract knows only 400 for it.

    The refusal's own code stands in `details`; an issue on the field `name` alone says the same.
    """
    return "name_taken" in text_of(body, "details")


def _answer(response: Response) -> Answer:
    """Raises Problem where what was answered is none of Muster's."""
    if response.is_redirect or (response.content and not _is_json(response)):
        kind = response.headers.get("Content-Type", "no type")
        raise Problem(
            f"what answers at {response.base} is no Muster",
            why=(f"{response.method} {response.path} was answered {response.status}, {kind}",),
            todo="`muster context list` shows which URL is asked; --url or MUSTER_URL names another",
            code=ExitCode.UNREACHABLE,
        )
    return Answer(
        status=response.status,
        body=_body(response),
        sequence=_number_in(response, "X-Log-Sequence"),
        version=_number_in(response, "X-Version"),
        request_id=response.headers.get("X-Request-Id"),
        date=response.headers.get("Date"),
        server=response.headers.get("X-Muster-Version"),
    )


def _number_in(response: Response, header: str) -> int | None:
    given = response.headers.get(header, "")
    return int(given) if given.isdigit() else None


def _body(response: Response) -> Row:
    """The object of an answer; a list stands under "items", so that every body is an object here."""
    try:
        body: Json = json.loads(response.content) if response.content else {}
    except ValueError:
        # A page of a proxy's is for browsers.
        return {} if response.text.lstrip().startswith("<") else {"message": response.text[:500]}
    match body:
        case dict():
            return body
        case list():
            return {"items": body}
        case _:
            return {"value": body}


def _is_json(response: Response) -> bool:
    try:
        json.loads(response.content)
    except ValueError:
        return False
    return True


def _retry_after(response: Response) -> float | None:
    given = response.headers.get("Retry-After", "")
    return float(given) if given.isdigit() else None
