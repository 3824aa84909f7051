"""Windows of a project: at which times its workloads may start."""

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Annotated

from events.fields.declare import Body, Limits
from events.project import Project
from events.windows import (
    LONGEST_ZONE,
    MOST_WINDOWS,
    SetStartWindows,
    StartWindows,
    State,
    is_zone,
    read_window,
    state_at,
    window_text,
)
from services.api import answers
from services.api.clusters import require_some_role
from services.api.context import MIN_SEQ, Call, Look, read_answer, version_header
from services.api.issues import Issue, shown
from services.api.operations import Answer, changes, reads
from services.api.paths import START_WINDOWS, WINDOWS
from services.api.places import directory_caught_up, directory_fresh, readable_project


class StartWindowsSetting(Body, frozen=True, kw_only=True):
    zone: Annotated[str, Limits(shortest=1, longest=LONGEST_ZONE)] = "UTC"
    """Zone of the IANA database by whose clock the windows are, such as `Europe/Berlin`."""
    windows: Annotated[tuple[Annotated[str, Limits(shortest=1, longest=60)], ...], Limits(longest=MOST_WINDOWS)] = ()
    """Days and times, such as `Mon-Fri 20:00-06:00`; a window that ends before it begins ends on the next day. Without
    days it is each day. Empty: workloads may start at any time.
    """
    ends_running: bool = False
    """Whether preemptible workloads that run are told to end when a window closes. They go on in the next one."""
    over_quota_only: bool = False
    """Whether the windows are about what the project uses beyond its quota: workloads start within it at any time. Not
    with `endsRunning`.
    """


@reads(
    WINDOWS,
    tag="Organisation",
    summary="List the windows of projects: of those that you may read, and that have any",
    query=(MIN_SEQ,),
    errors=(403,),
)
async def list_start_windows(call: Look) -> Answer[answers.StartWindowsOfProjects]:
    require_some_role(call)
    headers = await directory_fresh(call)
    known = sorted(call.api.directory.projects.values(), key=lambda project: project.name)
    found = [each for each in known if each.start_windows is not None and call.may_read(each.project_id)]
    return read_answer(
        answers.StartWindowsOfProjects(windows=[_answer(each) for each in found]), call.api.directory.seq, headers
    )


@reads(
    START_WINDOWS,
    tag="Organisation",
    summary="Get the times at which workloads of a project may start",
    query=(MIN_SEQ,),
    errors=(404,),
)
async def get_start_windows(call: Look) -> Answer[answers.StartWindows]:
    headers = await directory_fresh(call)
    chain = await readable_project(call)
    headers = version_header(chain.version) | headers
    return read_answer(_answer(chain.state), call.api.directory.seq, headers)


@changes(
    "PUT",
    START_WINDOWS,
    tag="Organisation",
    summary="Set at which times workloads of a project may start",
    body=StartWindowsSetting,
    example={"zone": "Europe/Berlin", "windows": ["Mon-Fri 20:00-06:00", "Sat,Sun 00:00-24:00"], "endsRunning": True},
    errors=(403, 404),
)
async def set_start_windows(call: Call) -> Answer[answers.HttpResponse]:
    given = call.fields(StartWindowsSetting, _issues)
    windows = None
    if given.windows:
        read = tuple(dict.fromkeys(map(read_window, given.windows)))
        windows = StartWindows(
            zone=given.zone, windows=read, ends_running=given.ends_running, over_quota_only=given.over_quota_only
        )
    reply = await call.send(SetStartWindows(project_id=call.id, windows=windows))
    await directory_caught_up(call, reply)
    told = "at any time" if windows is None else f"only {windows.told}"
    if windows is not None and windows.over_quota_only:
        return call.accepted(reply, f"project {call.id} may go over its quota {told}")
    return call.accepted(reply, f"workloads of project {call.id} may start {told}")


def _issues(setting: StartWindowsSetting) -> Iterator[Issue]:
    if not is_zone(setting.zone):
        details = f"{shown(setting.zone)} is no zone of the IANA database; write one such as Europe/Berlin or UTC"
        yield Issue(field="zone", details=details)
    for index, text in enumerate(setting.windows):
        try:
            read_window(text)
        except ValueError as error:
            yield Issue(field=f"windows[{index}]", details=str(error))
    if setting.ends_running and not setting.windows:
        details = "ends what runs when a window closes, and there is none; give windows, or leave it out"
        yield Issue(field="endsRunning", details=details)
    if setting.over_quota_only and not setting.windows:
        details = "is about windows, and there is none; give windows, or leave it out"
        yield Issue(field="overQuotaOnly", details=details)
    if setting.over_quota_only and setting.ends_running:
        details = "is not given with overQuotaOnly: nothing is ended when such a window closes"
        yield Issue(field="endsRunning", details=details)


def _answer(project: Project) -> answers.StartWindows:
    windows = project.start_windows
    state = State(is_open=True, changes_at=None) if windows is None else state_at(windows, datetime.now(UTC))
    return answers.StartWindows(
        project_id=project.project_id,
        project_name=project.name,
        zone=None if windows is None else windows.zone,
        windows=[] if windows is None else [window_text(each) for each in windows.windows],
        ends_running=windows is not None and windows.ends_running,
        over_quota_only=windows is not None and windows.over_quota_only,
        open=state.is_open,
        changes_at=state.changes_at,
    )
