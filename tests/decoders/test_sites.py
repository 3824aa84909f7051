"""Every place that decodes bytes from outside its process is written down here: who may write there, and what the
reader does with what it cannot read. A place that is not written down fails this test, so that a new one is thought of.
"""

import ast
import re
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[2]
READS: Final = {"loads", "safe_load", "safe_load_all", "model_validate", "model_validate_json", "validate_json"}
CALLED: Final = re.compile(rf"\.\s*({'|'.join(sorted({*READS, 'decode', 'convert'}))})\s*\(")
OWNERS: Final = {"msgspec.json", "msgspec.msgpack", "self._page", "self._object", "self._event", "self._bookmark"}

SPOILED: Final = "driven with spoiled messages in test_any_bytes.py: "
OWN_FILES: Final = "a file of whoever runs it; the command or start ends and names the file"
KUBERNETES: Final = "the cluster's API server, which the agent must trust; the call fails, or what waits is tried again"
SERVER: Final = "the NATS server; the call fails, and its caller tries again or ends"
USER: Final = "the user's own input or Muster's answer to the user; the command ends"
CONTROL: Final = "programs that `muster up` started on loopback; the start ends"

SITES: Final = {
    "events.envelope unpacked": SPOILED + "the api, through the gate; the batch is refused as invalid",
    "events.asset_specs volume_of": "the log, from events that the codec has decoded; it is not looked at",
    "events.codec": SPOILED + "services that may append; readers stand before it and name it",
    "muster.cli": USER,
    "muster.embedded": CONTROL,
    "services.agent.agent Agent._take": SPOILED + "cluster_sync; passed by with a warning",
    "services.agent.backends.local.isolation enter": "the agent's own child, by a pipe; the run fails to start",
    "services.agent.backends.kubernetes": KUBERNETES,
    "services.agent.backends.local.claims Claims.open": "the agent's own files; an unreadable one counts as missing",
    "services.agent.backends.local.run_folder _read": "the agent's own files; unreadable ones count as missing",
    "services.agent.backends.local.inside main": "the agent, in memory; the session is refused",
    "services.agent.backends.local.ways Exec._word": "the agent's own child; the session fails",
    "services.agent.backends.local.ways size_of": "whoever opened the session, through the api; passed over",
    "services.agent.sessions SessionServer._on_word": "the api; passed by with a warning",
    "services.api.ways _understood": "the cluster's agent; the session ends, and says so",
    "services.agent.backends.local.shim": "the agent's own child and files; the run fails to start",
    "services.agent.host AgentHost._take": SPOILED + "cluster_sync; passed by with a warning",
    "services.agent.recipes Recipes._on_answer": SPOILED + "cluster_sync; passed by with a warning",
    "services.agent.logs LogServer._on_request": SPOILED + "the api; answered with an end that names it",
    "services.api.asset_core listed": "the projector, from decoded states; 500",
    "services.api.batches": "any caller; 400 with a sentence, or read_object has the word (tests/api/test_batches.py)",
    "services.api.body read_object": SPOILED + "any caller; 400 with a sentence (test_body.py, test_extremes.py)",
    "services.api.body _twice": "any caller, what read_object has read (test_body.py)",
    "services.api.feed_frames mark_in": "services that may append; what names no commit has a mark, too",
    "services.api.outlook outlook": "the scheduler, or who else answers the api; told as not answered",
    "services.api.why _asked": "the scheduler, or who else answers the api; told as not answered",
    "services.api.public_events _read": "the feed, what its schemas say; 500",
    "services.api.tickets Tickets.open": "any caller; 401 with the reason (test_tickets.py)",
    "services.api.log_lines understood": SPOILED + "the cluster's agent; the named end of the answer",
    "services.scheduler.answering _answer_what_if": "the api; logged, and not answered",
    "services.scheduler.answering _answer_why": "the api; logged, and not answered",
    "services.scheduler.answering Answering._take_in": "the api; in nobody's name, and not answered",
    "services.api.shown_events": "nobody: events that the codec has decoded, as other structs",
    "services.api.shown_rows": "the projector, from events that the codec has decoded; 500",
    "services.api.undo _command": "the projector, from events that the codec has decoded; 500",
    "services.api.rows LoggedRows.runs_of": "nobody: JSON that this process has just made of the log's states",
    "services.api.operation_log _audited": SPOILED + "the gate; told as unreadable among the others",
    "services.api.check": "any caller, after read_object; 400 with every field (test_extremes.py)",
    "events.simulated unpacked": "cluster_sync; the agent asks to be opened anew (tests/agent/test_simulated.py)",
    "services.autoscaler.service Autoscaler.hear": "who forwards requests; dropped and counted (test_service.py)",
    "services.auto_deletion.time_limits LimitRows.reached": "the projector; left out, with a warning",
    "services.auto_deletion.budgets": "the projector, from decoded states; not measured, with a warning",
    "services.agent.recipes Recipes._opened": "cluster_sync, sealed to this agent; asked for again",
    "services.cluster_sync.recipes Recipes._asked_for": SPOILED + "the cluster's agent; passed by with a warning",
    "services.cluster_sync.recipes _asked_about": SPOILED + "the cluster's agent; taken for a request of a recipe",
    "services.cluster_sync.hear _taken": SPOILED + "the cluster's agent; refused by name in its condition",
    "services.cluster_sync.wanted Wanted.read": "cluster_sync itself; held for unreadable and written again",
    "services.commands.batches serve.handle": SPOILED + "the gate; refused as invalid",
    "services.commands.counts Counts._load": SPOILED + "commands itself; read from the log instead",
    "services.commands.handle serve.handle": SPOILED + "the gate and services; refused as invalid",
    "services.commands.keys JetStreamKeys.read": "commands itself; the request's outcome is unknown to who asked",
    "services.commands.watch LogWatch._broken": SERVER,
    "services.commands.watch LogWatch._on_room": SPOILED + "keepers of servers; passed by",
    "services.feed.service _kept": "the feed itself; the log is read without the snapshot",
    "services.feed.writer _commit_id": SPOILED + "services that may append; not the commit that was asked for",
    "services.ownership.gate Gate.handle": SPOILED + "the api; refused as invalid",
    "services.ownership.gate about_reader.read": "services that may append; the chain is read instead",
    "projections.schemas noted": "who may write the tables; counts as no note",
    "services.projector.diff _decoded": "nobody: JSON that Postgres has just made of a row",
    "services.projector.usage UsageWriter.take": SPOILED + "the cluster's agent; dropped with a warning",
    "services.runtime.backup.archive decode_manifest": "who can write the backup; refused by name (test_damage.py)",
    "services.runtime.backup.archive decode_message": "who can write the backup; refused by name (test_damage.py)",
    "services.runtime.backup.restore _Restore._change": SERVER,
    "services.runtime.backup.restore _files": "whoever has the backup's passphrase: the part is sealed",
    "services.runtime.backup.source Source._asked": SERVER,
    "services.runtime.backup.write _rest_of_batch": SPOILED + "services that may append; counts as no part of a batch",
    "services.runtime.identity.actors Actors._take": SPOILED + "the gate and setup; counts as no record",
    "services.runtime.identity.authentication": "any caller's token; 401 with the rule (test_authentication.py)",
    "services.runtime.nats.bus CommandClient._send": SPOILED + "the gate and commands; the outcome is unknown",
    "services.runtime.log.chains _decode_chain": "services that may append; the chain is read instead (test_snapshots)",
    "services.runtime.log.fold_snapshots FoldSnapshots.load": SPOILED + "the service itself; the log is read instead",
    "services.runtime.code.kept KeptCode.purge": SERVER,
    "services.runtime.code.kept KeptCode.subjects": SERVER,
    "services.runtime.code.kept KeptCode.whole": "the api; counts as not all there",
    "services.runtime.credentials.kept KeptCredentials.get": "the api; told as a value that is gone",
    "services.runtime.credentials.kept KeptCredentials._purge": SERVER,
    "services.runtime.credentials.kept KeptCredentials._info": SERVER,
    "services.runtime.credentials.kept _opened": "the api; told as a value that is damaged",
    "services.runtime.credentials.keys read_ring": "setup and an operator; told with the file's name",
    "services.runtime.nats.jetstream_api": SERVER,
    "services.runtime.identity.erase _Eraser._delete": SERVER,
    "services.runtime.identity.erase _Eraser._people": "the gate and setup; counts as no record",
    "services.runtime.identity.erase _Eraser._rewrite": "the gate; deleted where it holds the name (test_erase.py)",
    "services.runtime.identity.jwks": SPOILED + "the issuer; the last good keys stay",
    "services.runtime.identity.local_keys load_or_create_key": OWN_FILES,
    "services.runtime.log.log_state log_trouble": SPOILED + "commands; told as trouble of the log",
    "services.runtime.log.snapshots Snapshots._manifest": "services that may append; passed by (test_snapshots)",
    "services.runtime.nats.streams": SERVER,
    "services.proxy.sessions Sessions": "proxies alone, who seal it; a forged one is no session",
    "services.subscriptions.admit read_sign_in": "servers, what a client sends in it; not answered, with a warning",
    "services.subscriptions.connections": SERVER,
    "services.scheduler.fold SchedulingState.restore": "the scheduler itself; else nothing came (test_take_back.py)",
    "services.scheduler.forecast Forecast.restored": "the scheduler itself; nothing was learnt (test_estimate.py)",
    "services.scheduler.mix Mix.restored": "the scheduler itself; what has come is counted anew (test_mix.py)",
    "services.scheduler.simulation": "nobody: what `muster simulate` has read, to its own children and back",
    "services.subscriptions.feed": SERVER,
    "services.subscriptions.positions": "this service alone; passed by",
    "services.api.webhooks _ask": "the service webhooks; the api answers 503",
    "services.webhooks.answers Desk.handle": "the api; not answered, with a warning",
    "services.webhooks.standing Standings.newest": "this service alone; counts as none (test_standing.py)",
    "services.webhooks.table": "this service alone, in its tables",
    "services.setup.migrate migrate": SERVER,
    "services.setup.feed _delete": SERVER,
}
"""By module and function, or by what they begin with where all below has one answer."""


def test_every_place_that_decodes_is_thought_of() -> None:
    found = {site for top in ("services", "projections", "events", "muster") for site in sites(ROOT / top)}
    assert len(found) > 50, "the scan finds no more what it looks for"
    unknown = sorted(site for site in found if not any(is_below(site, known) for known in SITES))
    assert not unknown, f"say of each in SITES who may write there, and what becomes of junk: {unknown}"
    gone = sorted(known for known in SITES if not any(is_below(site, known) for site in found))
    assert not gone, f"nothing is decoded there any more: {gone}"


def test_a_new_place_is_found() -> None:
    source = "class A:\n    async def f(self):\n        return [msgspec.json.decode(x, type=B) for x in xs]\n"
    assert list(_sites("m", ast.parse(source), ())) == ["m A.f"]


def is_below(site: str, known: str) -> bool:
    return site == known or site.startswith((f"{known} ", f"{known}."))


def sites(folder: Path) -> set[str]:
    """`module function` of every call that decodes."""
    found: set[str] = set()
    for file in folder.rglob("*.py"):
        module = ".".join(file.relative_to(ROOT).with_suffix("").parts)
        text = file.read_text()
        if CALLED.search(text):  # to parse the others takes seconds
            found.update(_sites(module, ast.parse(text), ()))
    return found


def _sites(module: str, node: ast.AST, path: tuple[str, ...]) -> list[str]:
    found: list[str] = []
    for child in ast.iter_child_nodes(node):
        named = isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
        if isinstance(child, ast.Call) and isinstance(child.func, ast.Attribute) and _decodes(child.func):
            found.append(f"{module} {'.'.join(path)}")
        found += _sites(module, child, (*path, child.name) if named else path)
    return found


def _decodes(called: ast.Attribute) -> bool:
    match called.attr:
        case "decode":
            # Other `decode`s make text of bytes.
            owner = ast.unparse(called.value)
            return owner in OWNERS or owner.isupper() or "decoder" in owner.lower()
        case "convert":
            return ast.unparse(called.value) == "msgspec"
        case name:
            return name in READS
