"""What only an inference has: where its replicas listen, how many of them there are, and which model they serve."""

from typing import Annotated, ClassVar, Final, Literal

from msgspec.structs import replace

from events.fields.declare import About, Section
from events.fields.values import Int32, ItemName, Items, LongName
from events.workload.fields.connections import AuthorizationType, ExposedUrl, Member

Metric = Literal["throughput", "latency", "concurrency"]
ScaleReason = Literal["load", "idle", "request"]
"""Why the number of replicas changes: the load on each, nobody asks any more, or somebody asks again."""
MOST_REPLICAS: Final = 1_000
"""Of one inference: more than one proxy spreads requests over."""
RETENTIONS_SECONDS: Final = (60, 300, 900, 1800)
"""After 1, 5, 15 or 30 minutes without a request (S069)."""
DEFAULT_THRESHOLD: Final = 100
"""S068."""


class ServingPort(Section, frozen=True, kw_only=True):
    """Where a replica listens."""

    container: Annotated[Int32, About(rows="S067", flag="--serving-port", example="8000")]
    """Port on which a replica answers HTTP requests, 1 to 65535. Replicas find it in the variable PORT. Mandatory."""
    authorization_type: Annotated[AuthorizationType | None, About(rows="S028 R11", flag="--serving-authorization")] = (
        None
    )
    """Who may ask: authenticatedUsers (everybody who has signed in), authorizedUsers or authorizedGroups. Default: as
    the lists say, authenticatedUsers where there is none.
    """
    authorized_users: Annotated[Items[Member], About(rows="S028 R11", flag="--serving-users")] = ()
    """Users who may ask, by e-mail address or user name; at most 1000."""
    authorized_groups: Annotated[Items[Member], About(rows="S028 R11", flag="--serving-groups")] = ()
    """Groups whose members may ask, as tokens name them; at most 1000."""


class Autoscaling(Section, frozen=True, kw_only=True):
    """How many replicas there are."""

    min_replicas: Annotated[Int32 | None, About(rows="S068 S069", flag="--min-replicas")] = None
    """Number of replicas that there are at least, 0 to 1000. 0 only where it may be scaled to zero. Default: 1; where
    it may be scaled to zero, 0.
    """
    max_replicas: Annotated[Int32 | None, About(rows="S068", flag="--max-replicas")] = None
    """Number of replicas that there are at most, 1 to 1000. Default: minReplicas, and at least 1."""
    metric: Annotated[Metric, About(rows="S068 C19", flag="--metric")] = "throughput"
    """What more replicas are started by. throughput: requests per second of each replica. latency: milliseconds that a
    request takes. concurrency: requests that each replica works on at once. Default: throughput.
    """
    metric_threshold: Annotated[Int32, About(rows="S068", flag="--metric-threshold")] = DEFAULT_THRESHOLD
    """Value of the metric above which replicas are added, at least 1. Default: 100."""
    scale_to_zero_retention_seconds: Annotated[
        Int32 | None, About(rows="S069", unit="seconds", flag="--scale-to-zero-retention")
    ] = None
    """Time without a request after which no replica is left: 60, 300, 900 or 1800 seconds. Default: never."""


DEFAULT_MODEL_KEY: Final = "HF_TOKEN"


class ModelCredential(Section, frozen=True, kw_only=True):
    """A credential of who submits, with the token for the catalog."""

    name: Annotated[LongName, About(rows="S067 R10", flag="--model-credential")]
    """Name of the credential; its value is taken as it is when a replica starts. Replicas find the token in the
    variable HF_TOKEN. Mandatory within credential.
    """
    key: Annotated[ItemName | None, About(rows="S067", flag="--model-credential-key")] = None
    """Key of the credential that holds the token. Default: HF_TOKEN."""


class ServedModel(Section, frozen=True, kw_only=True):
    """A model of a catalog."""

    catalog: Annotated[Literal["HuggingFace"], About(rows="S067")] = "HuggingFace"
    """Catalog that has the model. Default: HuggingFace, the only one so far."""
    name: Annotated[LongName, About(rows="S067", flag="--model", example="Qwen/Qwen2.5-0.5B-Instruct")]
    """Name of the model in its catalog. Replicas find it in the variable MODEL_ID. Mandatory within model."""
    credential: Annotated[ModelCredential | None, About(rows="S067")] = None
    """With what the replicas sign in to the catalog. Default: nothing, since everybody may have the model."""


class Serving(Section, frozen=True, kw_only=True):
    """Port, replicas and model of an inference."""

    TITLE: ClassVar[str] = "Serving"

    serving_port: Annotated[ServingPort, About(rows="S067")]
    """Where a replica listens. Mandatory."""
    autoscaling: Annotated[Autoscaling, About(rows="S068 S069")] = Autoscaling()
    """How many replicas there are."""
    model: Annotated[ServedModel | None, About(rows="S067")] = None
    """Model that the replicas serve. The image is what serves it, such as a text-generation server. Default: none; the
    image is all there is.
    """


def serving_url(port: ServingPort) -> ExposedUrl:
    """At which the replicas are reached together."""
    return ExposedUrl(
        container=port.container,
        authorization_type=port.authorization_type,
        authorized_users=port.authorized_users,
        authorized_groups=port.authorized_groups,
    )


def with_serving_defaults(serving: Serving) -> Serving:
    """With the numbers of replicas written out, which depend on each other."""
    given = serving.autoscaling
    least = given.min_replicas
    if least is None:
        least = 0 if given.scale_to_zero_retention_seconds is not None else 1
    most = max(least, 1) if given.max_replicas is None else given.max_replicas
    return replace(serving, autoscaling=replace(given, min_replicas=least, max_replicas=most))


def following(serving: Serving) -> Serving:
    """With the numbers of replicas that each would have if nobody had given it."""
    given = serving.autoscaling
    least = with_serving_defaults(replace(serving, autoscaling=replace(given, min_replicas=None))).autoscaling
    most = with_serving_defaults(replace(serving, autoscaling=replace(given, max_replicas=None))).autoscaling
    replicas = replace(given, min_replicas=least.min_replicas, max_replicas=most.max_replicas)
    return replace(serving, autoscaling=replicas)
