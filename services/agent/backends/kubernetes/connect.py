"""From a kubeconfig, or from inside a cluster, to a client of its API server. Certificates are always checked.

Reading kubeconfigs, running their credential plugins and reading a ServiceAccount's token file again and again is
kubernetes_asyncio's. What it does not do is done here: say in words what is wrong with the file, and get credentials
anew when the server does not know them any more.
"""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, Final, cast
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

import msgspec
import yaml
from aiohttp import ClientSession, DummyCookieJar
from kubernetes_asyncio.client import ApiClient, Configuration
from kubernetes_asyncio.client.rest import RESTClientObject
from kubernetes_asyncio.config import ConfigException, incluster_config, kube_config

from services.agent.backends.kubernetes.client import ApiError, KubeClient, Timeouts

SERVICE_ACCOUNT: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount")
"""Where Kubernetes puts a pod's credentials."""
PLUGIN_SECONDS: Final = 30.0
"""How long a credential plugin of a kubeconfig may take."""
READ_BUFFER_BYTES: Final = 2**21
"""A line of a watch holds a whole object, of up to 1.5 MiB."""
RENEW_SECONDS: Final = 10.0
"""Credentials are not got anew more often: many calls are refused at once when a token runs out, and a plugin may ask
a service that counts.
"""


class ConnectError(Exception):
    """No API server can be reached this way; the message says which file and context, and what is wrong."""


async def connect(
    kubeconfig: Path | None, context: str | None, *, timeouts: Timeouts, service_account: Path = SERVICE_ACCOUNT
) -> KubeClient:
    """A client by this kubeconfig and context (None or empty: its current one); without a kubeconfig, of the cluster in
    which this process runs as a pod. Asks nothing of the server yet. Raises ConnectError.
    """

    async def load() -> Configuration:
        if kubeconfig is None:
            return _in_cluster(service_account)
        return await _from_kubeconfig(kubeconfig, context or None)

    credentials = _Credentials(load)
    return KubeClient(await credentials.open(), timeouts=timeouts, renew=credentials.renew)


class _Credentials:
    """Keeps one ApiClient supplied with what is valid now."""

    def __init__(self, load: Callable[[], Awaitable[Configuration]]) -> None:
        self._load = load
        self._lock = asyncio.Lock()
        self._renewed_at = -RENEW_SECONDS
        self._api: Any = None  # kubernetes_asyncio has no types here
        self._server: _Server

    async def open(self) -> ApiClient:
        configuration = await self._load()
        self._server = _Server.of(configuration)
        self._api = cast("Any", ApiClient(configuration))
        _blind_to_environment(self._api.rest_client)
        _forget_files()
        return cast("ApiClient", self._api)

    async def renew(self) -> None:
        """Raises ApiError `Credentials`."""
        loop = asyncio.get_running_loop()
        async with self._lock:
            if loop.time() - self._renewed_at < RENEW_SECONDS:
                return
            try:
                configuration = await self._load()
            except ConnectError as error:
                raise ApiError(0, "Credentials", str(error)) from error
            finally:
                self._renewed_at = loop.time()
            server = _Server.of(configuration)
            self._api.configuration = configuration
            if server != self._server:
                # Only then: closing the session cuts the streams, and with them an unbroken view of the cluster.
                old, self._api.rest_client = self._api.rest_client, RESTClientObject(configuration)
                _blind_to_environment(self._api.rest_client)
                self._server = server
                await old.close()
            _forget_files()


class _Server(msgspec.Struct, frozen=True):
    """What a session is built of; a token is not."""

    host: str
    name: str | None
    proxy: str | None
    files: tuple[bytes, ...]

    @classmethod
    def of(cls, configuration: Any) -> "_Server":
        paths = (configuration.ssl_ca_cert, configuration.cert_file, configuration.key_file)
        return cls(
            configuration.host,
            configuration.tls_server_name,
            configuration.proxy,
            tuple(Path(path).read_bytes() if path else b"" for path in paths),
        )


async def _from_kubeconfig(file: Path, context: str | None) -> Configuration:
    config = _read(file)
    contexts = _names(config, "contexts")
    there_are = f"there are: {', '.join(contexts)}" if contexts else "there are none"
    chosen = context or config.get("current-context")
    if not chosen:
        raise ConnectError(f"kubeconfig {file} names no current context; {there_are}")
    if chosen not in contexts:
        raise ConnectError(f"kubeconfig {file} has no context '{chosen}'; {there_are}")
    configuration = Configuration()
    where = f"kubeconfig {file}, context '{chosen}'"
    try:
        loader = cast("Any", kube_config.KubeConfigLoader)(
            config_dict=config, active_context=chosen, config_base_path=str(file.parent)
        )
        async with asyncio.timeout(PLUGIN_SECONDS):
            await loader.load_and_set(configuration)
    except TimeoutError as error:
        raise ConnectError(f"{where}: its credential plugin took longer than {PLUGIN_SECONDS:.0f} s") from error
    except Exception as error:
        # Every part of the file fails in a way of its own: a missing key, bad base64, a plugin that is not installed.
        raise ConnectError(f"{where}: {error}") from error
    return _checked(configuration, where)


def _in_cluster(folder: Path) -> Configuration:
    configuration = Configuration()
    try:
        cast("Any", incluster_config).load_incluster_config(
            client_configuration=configuration,
            token_filename=str(folder / "token"),
            cert_filename=str(folder / "ca.crt"),
        )
    except (ConfigException, OSError) as error:
        raise ConnectError(
            f"no kubeconfig was given, and this process does not run in a pod with a ServiceAccount ({folder}): {error}"
        ) from error
    return _checked(configuration, f"ServiceAccount in {folder}")


def _checked(configuration: Any, where: str) -> Configuration:
    if not configuration.host.startswith("https://"):
        raise ConnectError(f"{where}: the server's address must begin with https://, not {configuration.host}")
    if not configuration.verify_ssl:
        raise ConnectError(
            f"{where}: `insecure-skip-tls-verify` is not accepted; put the server's authority into "
            "`certificate-authority` or `certificate-authority-data`"
        )
    # Python asks more of an authority than the standards' users keep (an AuthorityKeyIdentifier in each certificate).
    # Signatures, names and dates are checked all the same.
    configuration.disable_strict_ssl_verification = True
    # No limit: each followed log holds a connection. The client itself bounds its calls.
    configuration.connection_pool_maxsize = 0
    configuration.proxy = configuration.proxy or _proxy_of_environment(configuration.host)
    return configuration


def _proxy_of_environment(url: str) -> str | None:
    """HTTPS_PROXY, unless NO_PROXY names the host."""
    host = urlsplit(url).netloc
    return None if proxy_bypass(host) else getproxies().get("https")


def _blind_to_environment(rest_client: Any) -> None:
    """The library's session looks at ~/.netrc and for proxies anew with every call, in a thread: a third of what the
    agent uses of a processor. An entry in that file for the server's host would make every call fail besides, for a
    token is sent already.
    """
    connector = rest_client.pool_manager.connector
    rest_client.pool_manager.detach()
    rest_client.pool_manager = ClientSession(
        connector=connector, cookie_jar=DummyCookieJar(), read_bufsize=READ_BUFFER_BYTES
    )


def _read(file: Path) -> dict[str, Any]:
    try:
        config: object = yaml.safe_load(file.read_text())
    except (OSError, UnicodeDecodeError) as error:
        raise ConnectError(f"kubeconfig {file} cannot be read: {error}") from error
    except yaml.YAMLError as error:
        raise ConnectError(f"kubeconfig {file} is not YAML: {error}") from error
    if not isinstance(config, dict):
        raise ConnectError(f"kubeconfig {file} is empty or not a mapping")
    return cast("dict[str, Any]", config)


def _names(config: dict[str, Any], kind: str) -> list[str]:
    entries: object = config.get(kind)
    if not isinstance(entries, list):
        return []
    mappings = [cast("dict[str, Any]", entry) for entry in cast("list[Any]", entries) if isinstance(entry, dict)]
    return [str(mapping.get("name")) for mapping in mappings]


def _forget_files() -> None:
    """The library writes certificates and keys of a kubeconfig to files, remembers their names for ever, and does not
    write them again. They are read by now: no key stays behind, and a cleaner of temporary files can do no harm.
    """
    kube_config._cleanup_temp_files()  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]
