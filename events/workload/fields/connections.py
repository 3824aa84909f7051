"""How people and programs reach what a workload serves."""

from typing import Annotated, ClassVar, Literal

from events.fields.declare import About, Item, Limits, Section
from events.fields.values import Excluded, Int32, ItemName, Items, LongName, LongUrl, PoolWord

AuthorizationType = Literal["authenticatedUsers", "authorizedUsers", "authorizedGroups"]
ServiceType = Literal["LoadBalancer", "NodePort", "ClusterIP"]
PortNumber = Annotated[int, Limits(format="int32", least=1, most=65_535)]
Member = Annotated[str, Limits(longest=253)]
ToolName = Annotated[str, Limits(longest=253)]


class ExposedUrl(Item, frozen=True, kw_only=True, omit_defaults=True):
    """An address in a browser for a port of the workload, behind the proxy."""

    container: Annotated[Int32 | None, About(rows="S029 R11")] = None
    """Port on which the container listens. Mandatory."""
    url: Annotated[LongUrl | None, About(rows="S028 S029")] = None
    """Address at which it is reached: one name before the domain of the proxy, such as https://tool.apps.example.com.
    Default: one is generated.
    """
    authorization_type: Annotated[AuthorizationType | None, About(rows="S028 R11")] = None
    """Who may open it: authenticatedUsers (everybody who has signed in), authorizedUsers or authorizedGroups. Default:
    as the lists say, authenticatedUsers where there is none.
    """
    authorized_users: Annotated[Items[Member], About(rows="S028 R11")] = ()
    """Users who may open it, by e-mail address or user name; at most 1000."""
    authorized_groups: Annotated[Items[Member], About(rows="S028 R11")] = ()
    """Groups whose members may open it, as tokens name them; at most 1000. You must be a member of one."""
    tool_type: Annotated[str, About(rows="S029")] = ""
    """What listens there, such as jupyter-notebook."""
    tool_name: Annotated[ToolName, About(rows="S029")] = ""
    """Name of the tool for people."""
    name: Annotated[LongName | None, About(rows="S029 R37")] = None
    """Name of this item, by which exclude finds it."""
    exclude: Annotated[bool, About(rows="S029 S075 R37")] = False
    """Whether to drop the item of this name that a default sets."""


class Port(Item, frozen=True, kw_only=True, omit_defaults=True):
    """A port of the workload that is reached without the proxy."""

    container: Annotated[PortNumber | None, About(rows="S031 R12")] = None
    """Port on which the container listens. Mandatory."""
    service_type: Annotated[ServiceType | None, About(rows="S031 R12")] = None
    """ClusterIP (within the cluster), NodePort (at every node) or LoadBalancer. Mandatory."""
    external: Annotated[Int32 | None, About(rows="S030 S031 R12")] = None
    """Port at which it is reached; of a NodePort 30000 to 32767. Default: one is chosen."""
    tool_type: Annotated[PoolWord, About(rows="S031")] = ""
    """What listens there, such as tensorboard."""
    tool_name: Annotated[ToolName, About(rows="S031")] = ""
    """Name of the tool for people."""
    name: Annotated[ItemName | None, About(rows="S031 R37")] = None
    """Name of this item, by which exclude finds it."""
    exclude: Annotated[Excluded, About(rows="S031 S075 R37")] = False
    """Whether to drop the item of this name that a default sets."""


class Connections(Section, frozen=True, kw_only=True):
    """Addresses and ports."""

    TITLE: ClassVar[str] = "Connections"

    exposed_urls: Annotated[Items[ExposedUrl], About(rows="S028 S029 R11", flag="--external-url", key="name")] = ()
    """Ports that people open in a browser, behind the proxy; at most 1000."""
    ports: Annotated[Items[Port], About(rows="S030 S031 R12", flag="--port", key="name")] = ()
    """Ports that are reached without the proxy; at most 1000."""
