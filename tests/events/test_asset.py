"""Deciding on assets, given, when, then."""

from datetime import timedelta
from typing import Any

import pytest
from msgspec.structs import replace

from events.aggregate import ASSET
from events.asset import (
    MAX_MARKS,
    MAX_SPEC_BYTES,
    Asset,
    AssetChanged,
    AssetCreated,
    AssetDeleted,
    ChangeAsset,
    CreateAsset,
    DataSourceMarked,
    DeleteAsset,
    MarkDataSource,
    OfferDataVolume,
    SourceIssue,
    asset_key,
)
from events.commands import target
from events.ids import key_of_id
from events.refusal import Refusal
from tests.events.given import NOW, context

SPEC = {"image": "python:3.13", "security": None}


class Given:
    """An asset with a life behind it."""

    def __init__(self, *commands: Any) -> None:
        self.state: Asset = ASSET.initial
        for number, command in enumerate(commands):
            self.do(command, f"c{number}")

    def when(self, command: Any, command_id: str = "c") -> Any:
        return ASSET.decide(command, self.state, context(now=NOW, command_id=command_id))

    def do(self, command: Any, command_id: str = "c") -> tuple[Any, ...]:
        events = self.when(command, command_id)
        assert not isinstance(events, Refusal), events
        self.state = ASSET.after(self.state, events)
        return events


def create(**more: Any) -> CreateAsset:
    given: dict[str, Any] = {"kind": "environment", "name": "torch", "scope": "tenant", "spec": SPEC}
    return CreateAsset(**given | more)


def test_what_was_given_is_kept_with_its_nulls() -> None:
    (created,) = Given().do(create(scope="project", project_id="p"))
    assert isinstance(created, AssetCreated)
    assert (created.spec, created.project_id, created.cluster_id, created.at) == (SPEC, "p", "", NOW)
    assert key_of_id(created.asset_id) == asset_key("environment", "project", "p", "torch")


def test_a_name_is_taken_within_its_kind_and_scope_and_another_is_proposed() -> None:
    refused = Given(create()).when(create())
    assert isinstance(refused, Refusal)
    assert refused.code == "name_taken"
    assert "'torch-2'" in refused.message
    keys = {
        asset_key(kind, scope, place, "torch")
        for kind in ("environment", "compute", "template")
        for scope, place in (("tenant", ""), ("project", "p"), ("project", "q"), ("cluster", "p"))
    }
    assert len(keys) == 12


OFFER = OfferDataVolume(
    project_id="owner", name="sets", scope="tenant", cluster_id="k", claim_name="imagenet", mount_path="/data"
)


def test_a_data_volume_is_of_the_project_whose_claim_it_is_whoever_it_is_for() -> None:
    """S060: the gate goes by the project of the command, and who is to use a claim does not say whose it is."""
    (created,) = Given().do(replace(OFFER, scope="project", place="user"))
    assert isinstance(created, AssetCreated)
    assert (created.kind, created.scope, created.project_id, created.cluster_id) == (
        "data-volume",
        "project",
        "user",
        "",
    )
    given = Given(replace(OFFER, scope="project", place="user"))
    assert (given.state.manager, given.state.only_on) == ("owner", "k")
    for stranger in ("other", None):
        refused = given.when(DeleteAsset(asset_id=given.state.asset_id, project_id=stranger))
        assert isinstance(refused, Refusal)
        assert refused.code == "not_found"
    given.do(DeleteAsset(asset_id=given.state.asset_id, project_id="owner"))
    assert not given.state.exists


def test_the_project_that_a_data_volume_is_for_alone_can_decline_it_and_no_more() -> None:
    given = Given(replace(OFFER, scope="project", place="user"))
    refused = given.when(ChangeAsset(asset_id=given.state.asset_id, project_id="user", spec=given.state.spec))
    assert isinstance(refused, Refusal)
    assert refused.code == "not_found"
    given.do(DeleteAsset(asset_id=given.state.asset_id, project_id="user"))
    assert not given.state.exists
    for_all = Given(OFFER)
    assert isinstance(for_all.when(DeleteAsset(asset_id=for_all.state.asset_id)), Refusal)
    assert isinstance(for_all.when(DeleteAsset(asset_id=for_all.state.asset_id, project_id="user")), Refusal)


def test_a_name_of_a_data_volume_is_its_owners_alone() -> None:
    """Who offers to a project learns nothing of the names there, and takes none."""
    offers = [replace(OFFER, scope="project", place="user", project_id=owner) for owner in ("owner", "other", "user")]
    made = {target(offer): Given(offer).state.asset_id for offer in offers}
    assert len(made) == len(offers)
    assert {("asset", key_of_id(id_)) for id_ in made.values()} == set(made)


@pytest.mark.parametrize(
    "command",
    [
        create(kind="data-volume", spec=OFFER.asset.spec),
        create(kind="data-volume", scope="project", project_id="user", spec=OFFER.asset.spec),
        replace(OFFER, scope="cluster", place="k"),
        replace(OFFER, place="user"),
        replace(OFFER, scope="department"),
    ],
)
def test_a_data_volume_is_offered_in_one_way_alone(command: Any) -> None:
    refused = Given().when(command)
    assert isinstance(refused, Refusal)
    assert (refused.code, refused.field) == ("invalid", "meta.scope")


def test_a_data_volume_stays_the_claim_that_it_was_made_of_and_no_other_asset_becomes_one() -> None:
    given, spec = Given(OFFER), OFFER.asset.spec
    for other in (
        spec | {"offeredClaim": spec["offeredClaim"] | {"claimName": "secrets"}},
        {"storage": spec["storage"]},
    ):
        refused = given.when(ChangeAsset(asset_id=given.state.asset_id, project_id="owner", spec=other))
        assert isinstance(refused, Refusal)
        assert "create another one" in refused.message
    elsewhere = {"storage": {"dataVolume": [{"mountPath": "/other"}]}}
    given.do(ChangeAsset(asset_id=given.state.asset_id, project_id="owner", spec=spec | elsewhere))
    environment = Given(create())
    refused = environment.when(ChangeAsset(asset_id=environment.state.asset_id, spec=spec))
    assert isinstance(refused, Refusal)


def test_only_the_cluster_that_has_the_claim_says_that_a_data_volume_cannot_be_used() -> None:
    given = Given(OFFER)
    assert given.state.spec_at is not None
    word = MarkDataSource(asset_id=given.state.asset_id, cluster_id="other", spec_at=given.state.spec_at, issue="no")
    assert given.when(word) == ()
    assert given.do(replace(word, cluster_id="k"))


def test_a_name_is_free_again_after_a_deletion_and_stands_for_another_asset() -> None:
    given = Given(create())
    first = given.state.asset_id
    assert given.do(DeleteAsset(asset_id=first)) == (AssetDeleted(at=NOW),)
    given.do(create(), "again")
    assert given.state.exists
    assert given.state.asset_id != first
    gone = given.when(ChangeAsset(asset_id=first, spec={}))
    assert isinstance(gone, Refusal)
    assert gone.code == "not_found"


def test_a_change_sets_the_whole_spec_and_the_same_spec_changes_nothing() -> None:
    given = Given(create())
    change = ChangeAsset(asset_id=given.state.asset_id, spec={"image": "other"})
    assert given.do(change) == (AssetChanged(at=NOW, spec={"image": "other"}),)
    assert given.state.spec == {"image": "other"}
    assert given.when(change) == ()


@pytest.mark.parametrize("act", [ChangeAsset, DeleteAsset])
@pytest.mark.parametrize("named", [None, "q"])
def test_who_names_another_project_than_the_assets_finds_nothing(act: Any, named: str | None) -> None:
    """The gate looks at the project that a command names."""
    given = Given(create(scope="project", project_id="p"))
    more = {"spec": {}} if act is ChangeAsset else {}
    refused = given.when(act(asset_id=given.state.asset_id, project_id=named, **more))
    assert isinstance(refused, Refusal)
    assert refused.code == "not_found"


@pytest.mark.parametrize(
    "place",
    [
        {"scope": "project"},
        {"scope": "tenant", "project_id": "p"},
        {"scope": "cluster"},
        {"scope": "cluster", "project_id": "p", "cluster_id": "c"},
        {"scope": "project", "project_id": "p", "cluster_id": "c"},
    ],
)
def test_a_scope_without_its_place_is_no_command(place: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="the scope is"):
        create(**place)


def test_a_spec_that_is_too_large_is_refused() -> None:
    large = {"args": "x" * MAX_SPEC_BYTES}
    for refused in (Given().when(create(spec=large)), Given(create()).when(create(spec=large))):
        assert isinstance(refused, Refusal)
    given = Given(create())
    refused = given.when(ChangeAsset(asset_id=given.state.asset_id, spec=large))
    assert isinstance(refused, Refusal)
    assert refused.code == "invalid"


def test_events_that_do_not_fit_change_nothing() -> None:
    nothing = ASSET.initial
    assert ASSET.evolve(nothing, AssetChanged(at=NOW, spec={})) is nothing
    assert ASSET.evolve(nothing, AssetDeleted(at=NOW)) is nothing
    given = Given(create())
    same = AssetCreated(
        asset_id=given.state.asset_id,
        kind="compute",
        name="n",
        scope="tenant",
        created_by="x",
        at=NOW + timedelta(1),
        spec={},
    )
    assert ASSET.evolve(given.state, same) is given.state


def mark(given: Given, **more: Any) -> MarkDataSource:
    of = given.state
    assert of.spec_at is not None
    fields: dict[str, Any] = {"asset_id": of.asset_id, "cluster_id": "c", "spec_at": of.spec_at, "issue": "gone"}
    return MarkDataSource(**fields | more)


def source(**more: Any) -> Given:
    return Given(create(kind="git", spec={"storage": {"git": [{"repository": "https://a/b", "path": "/a"}]}}, **more))


def test_a_mark_is_one_event_until_it_goes_and_another_spec_has_none() -> None:
    """S053."""
    given = source()
    assert given.do(mark(given)) == (DataSourceMarked(cluster_id="c", issue="gone", at=NOW),)
    assert given.state.issues == {"c": SourceIssue(issue="gone", at=NOW)}
    assert given.when(mark(given, issue="in other words")) == ()
    given.do(mark(given, cluster_id="d"))
    assert given.do(mark(given, issue="")) == (DataSourceMarked(cluster_id="c", at=NOW),)
    assert given.state.issues.keys() == {"d"}
    given.do(ChangeAsset(asset_id=given.state.asset_id, spec={"storage": {"git": [{"path": "/b"}]}}))
    assert given.state.issues == {}


@pytest.mark.parametrize(
    ("given", "more"),
    [
        (source(), {"issue": ""}),
        (source(), {"spec_at": NOW - timedelta(seconds=1)}),
        (source(), {"asset_id": "another"}),
        (source(scope="cluster", cluster_id="d"), {}),
        (Given(create()), {}),
    ],
    ids=["nothing is known", "another spec", "another asset", "another cluster's", "no data source"],
)
def test_what_is_not_about_it_marks_nothing(given: Given, more: dict[str, Any]) -> None:
    assert given.when(mark(given, **more)) == ()


def test_so_many_clusters_mark_one_and_no_more() -> None:
    given = source()
    for number in range(MAX_MARKS):
        given.do(mark(given, cluster_id=f"c-{number}"))
    assert given.when(mark(given)) == ()
    assert given.when(mark(given, cluster_id="c-0", issue="")) != ()
