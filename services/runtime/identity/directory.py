"""Who may do what where, which clusters, departments and projects there are, and prices: a live fold of the log.

It follows the log, so it lags by milliseconds. Where that would matter (before a refusal, before somebody touches what
another one owns) ask the log's leader instead: `EventReader.load`.
"""

import asyncio
import contextlib
from collections.abc import Collection, Mapping
from typing import Any, Final, NamedTuple, override

from events.actors import STRANGER
from events.aggregate import CLUSTER, DEPARTMENT, PRICES, PROJECT, TENANT, VOID, Chain
from events.authorize import Grants
from events.cluster import Cluster
from events.commit import Commit
from events.department import DEFAULT_DEPARTMENT, DEFAULT_DEPARTMENT_ID, NEVER_CHANGED, Department
from events.ids import TENANT_KEY
from events.prices import PRICES_KEY, Prices
from events.project import Project
from events.service_accounts import ServiceAccount
from events.subscriptions import Subscription
from events.tenant import Tenant
from events.webhooks import Webhook
from services.runtime.log.folding import follow_into
from services.runtime.log.log_fold import LogFold
from services.runtime.log.store import EventReader, OnStanding, UnreadableMessageError

FOLDED: Final = (TENANT, PROJECT, DEPARTMENT, CLUSTER, PRICES, VOID)
"""With the voids, so that whoever keeps a directory knows at once which messages say nothing."""
KINDS: Final = tuple(aggregate.name for aggregate in FOLDED)
START_SECONDS: Final = 30.0
"""Reading every change of roles and settings there ever was takes far less; after this something is wrong."""
MAX_REMEMBERED_GRANTS: Final = 10_000
"""Put together once per actor and change."""


class KnownWebhook(NamedTuple):
    """A webhook, and what its state does not say."""

    webhook: Webhook
    project_id: str
    since: int
    """Sequence of the commit that created it: it is told of what comes after that."""


class Directory(LogFold):
    """The fold. `start` returns when it has caught up; `until` must be awaited, so that a failure is heard.

    Attributes:
        seq: sequence of the newest commit in it; only commits of KINDS count.
        projects: those that were not deleted, by id.
        departments: those that were not deleted, by id; the default one also where the log says nothing of it.
        clusters: those that were not removed, by id.
        subscriptions: those of all projects, by id, each with its project's id.
        webhooks: those of all projects, by id.
        unreadable: the message that it stands before: nothing that came after it is known here.
    """

    def __init__(self, store: EventReader, on_standing: OnStanding = lambda _: None) -> None:
        super().__init__(FOLDED)
        self._known = 0
        self.unreadable: UnreadableMessageError | None = None
        self._on_standing = on_standing
        self.projects: dict[str, Project] = {}
        self.clusters: dict[str, Cluster] = {}
        self.departments: dict[str, Department] = {DEFAULT_DEPARTMENT_ID: NEVER_CHANGED}
        self.subscriptions: dict[str, tuple[Subscription, str]] = {}
        self.webhooks: dict[str, KnownWebhook] = {}
        self._subscribers: dict[str, str] = {}
        """Ids of subscriptions, by public key."""
        self._store = store
        self._grants: dict[str, Grants] = {}
        self._project_names: dict[str, str] = {}
        self._department_names: dict[str, str] = {DEFAULT_DEPARTMENT: DEFAULT_DEPARTMENT_ID}
        self._projects_in: dict[str, dict[str, None]] = {}
        """By department id: ids of its projects."""
        self._accounts: dict[str, tuple[ServiceAccount, str]] = {}
        """By the hash of their token."""
        self._cluster_names: dict[str, str] = {}
        self._moved = asyncio.Event()
        self._follower: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Follow, and wait until everything up to now is in, or it stands before what cannot be read. Raises
        TimeoutError, and what ended the follower.
        """
        newest = await self._store.last_seq(aggregates=KINDS)
        self._follower = asyncio.create_task(self._follow(), name="directory")
        catching_up = asyncio.ensure_future(self.reached(newest, timeout_seconds=START_SECONDS))
        await self._first_of(catching_up)
        if not catching_up.result() and self.unreadable is None:
            raise TimeoutError(f"roles, projects and clusters were not read up to {newest} in {START_SECONDS:.0f} s")

    async def close(self) -> None:
        if self._follower is not None:
            self._follower.cancel()
            await asyncio.gather(self._follower, return_exceptions=True)

    async def until(self, stop: asyncio.Event) -> None:
        """Wait for `stop`; raises what ended the follower before that, such as a gap in the log."""
        await self._first_of(asyncio.ensure_future(stop.wait()))

    async def reached(self, seq: int, *, timeout_seconds: float) -> bool:
        """Whether the commit of this sequence, of one of KINDS, is in; waits for it, but not longer than given, and not
        while it stands before what cannot be read.
        """
        try:
            async with asyncio.timeout(timeout_seconds):
                while self.seq < seq and self.unreadable is None:
                    await self._moved.wait()
        except TimeoutError:
            return False
        return self.seq >= seq

    def told(self, seq: int) -> None:
        """A commit of one of KINDS is known to be in the log: `fresh` waits for it."""
        self._known = max(self._known, seq)

    @property
    def known(self) -> int:
        """Sequence of the newest commit of KINDS that anybody here has heard of."""
        return max(self._known, self.seq)

    async def fresh(self, *, timeout_seconds: float) -> bool:
        """Whether all that was told of is in; waits for it, but not longer than given. While it stands before what
        cannot be read, what it knows has to do: reading goes on.
        """
        if self.seq >= self._known or await self.reached(self._known, timeout_seconds=timeout_seconds):
            return True
        return self.unreadable is not None

    def grants(self, actor: str) -> Grants:
        """The roles of an actor, here and everywhere; none for a stranger."""
        known = self._grants.get(actor)
        if known is None:
            if len(self._grants) >= MAX_REMEMBERED_GRANTS:
                self._grants.clear()
            known = self._grants[actor] = grants_of(actor, self._tenant(), self.projects)
        return known

    def project(self, project_id: str) -> Project | None:
        return self.projects.get(project_id)

    def account_with(self, hash_: str) -> tuple[ServiceAccount, str] | None:
        """The service account whose token has this hash, and the id of its project."""
        return self._accounts.get(hash_)

    def subscriber(self, public_key: str) -> Subscription | None:
        """The subscription that has this key."""
        found = self.subscriptions.get(self._subscribers.get(public_key, ""))
        return None if found is None else found[0]

    async def moved(self, idle_seconds: float) -> None:
        """Wait until something changes, but not longer than given."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(idle_seconds):
                await self._moved.wait()

    def cluster(self, cluster_id: str) -> Cluster | None:
        return self.clusters.get(cluster_id)

    def project_named(self, name: str) -> Project | None:
        return self.projects.get(self._project_names.get(name, ""))

    def department_named(self, name: str) -> Department | None:
        return self.departments.get(self._department_names.get(name, ""))

    def projects_in(self, department_id: str) -> Collection[str]:
        """Ids of the projects that stand in a department."""
        return self._projects_in.get(department_id, {}).keys()

    def cluster_named(self, name: str) -> Cluster | None:
        return self.clusters.get(self._cluster_names.get(name, ""))

    def removed_clusters(self) -> list[Cluster]:
        """Those that were removed and whose name nothing has since."""
        return [chain.state for chain in self.of(CLUSTER).values() if chain.state.removed]

    @property
    def prices(self) -> Prices:
        """What an hour of a GPU costs."""
        return self.chain(PRICES, PRICES_KEY).state

    def _tenant(self) -> Tenant:
        return self.chain(TENANT, TENANT_KEY).state

    async def _first_of(self, waiter: "asyncio.Future[Any]") -> None:
        """Wait for it, or raise what ended the follower before."""
        if self._follower is None:
            raise RuntimeError("a directory must be started first")
        try:
            await asyncio.wait((waiter, self._follower), return_when=asyncio.FIRST_COMPLETED)
            if self._follower.done():
                # A follower never ends well: its log has a gap.
                self._follower.result()
        finally:
            if not waiter.done():
                waiter.cancel()

    async def _follow(self) -> None:
        async with contextlib.aclosing(
            follow_into(self._store, self, on_standing=self._stand, aggregates=KINDS)
        ) as arrivals:
            async for commits in arrivals:
                if commits:
                    self._wake()

    def _stand(self, unreadable: UnreadableMessageError | None) -> None:
        self.unreadable = unreadable
        self._on_standing(unreadable)
        self._wake()

    def _wake(self) -> None:
        self._moved.set()
        self._moved = asyncio.Event()

    @override
    def took(self, commit: Commit, before: Chain[Any], after: Chain[Any]) -> None:
        self._store.saw(commit.aggregate, commit.key, commit.seq)
        if commit.aggregate == CLUSTER.name:
            self._take_cluster(before.state, after.state)
            return
        if commit.aggregate == DEPARTMENT.name:
            self._take_department(before.state, after.state)
            return
        # Roles changed, or might have; they are put together again when somebody asks.
        self._grants.clear()
        if commit.aggregate == PROJECT.name:
            self._take_project(before.state, after.state)
            self._take_webhooks(before.state, after.state, commit.seq)

    def _take_project(self, before: Project, after: Project) -> None:
        # A name that is used again has another id: the deleted project must not stay beside it.
        self.projects.pop(before.project_id, None)
        self._project_names.pop(before.name, None)
        for account in before.accounts.values():
            self._accounts.pop(account.token_hash, None)
        for subscription in before.subscriptions.values():
            self.subscriptions.pop(subscription.id, None)
            self._subscribers.pop(subscription.public_key, None)
        if (there := self._projects_in.get(before.department_id)) is not None:
            there.pop(before.project_id, None)
            if not there:
                del self._projects_in[before.department_id]
        if after.exists:
            self._projects_in.setdefault(after.department_id, {})[after.project_id] = None
            self.projects[after.project_id] = after
            self._project_names[after.name] = after.project_id
            for account in after.accounts.values():
                self._accounts[account.token_hash] = (account, after.project_id)
            for subscription in after.subscriptions.values():
                self.subscriptions[subscription.id] = (subscription, after.project_id)
                self._subscribers[subscription.public_key] = subscription.id

    def _take_department(self, before: Department, after: Department) -> None:
        self.departments.pop(before.department_id, None)
        self._department_names.pop(before.name, None)
        if after.exists:
            self.departments[after.department_id] = after
            self._department_names[after.name] = after.department_id

    def _take_webhooks(self, before: Project, after: Project, seq: int) -> None:
        known = {id_: self.webhooks.pop(id_).since for id_ in before.webhooks if id_ in self.webhooks}
        if after.exists:
            for webhook in after.webhooks.values():
                since = known.get(webhook.id, seq)
                self.webhooks[webhook.id] = KnownWebhook(webhook, after.project_id, since)

    def _take_cluster(self, before: Cluster, after: Cluster) -> None:
        # A name that is used again has another id: the removed cluster must not stay beside it.
        self.clusters.pop(before.cluster_id, None)
        self._cluster_names.pop(before.name, None)
        if after.exists:
            self.clusters[after.cluster_id] = after
            self._cluster_names[after.name] = after.cluster_id


def grants_of(actor: str, tenant: Tenant, projects: Mapping[str, Project]) -> Grants:
    """The roles of an actor, put together from the states that hold them; none for a stranger."""
    if actor == STRANGER:
        return Grants()
    return Grants(
        tenant_roles=tenant.roles.get(actor, ()),
        project_roles={
            project_id: roles for project_id, project in projects.items() if (roles := project.roles.get(actor))
        },
    )
