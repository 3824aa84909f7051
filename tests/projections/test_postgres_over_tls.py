"""What a URL of Postgres says about TLS holds: a server without is refused, and the password's file changes nothing."""

from pathlib import Path

import pytest

from development.servers import PostgresServer
from muster.embedded.certificates import authority_in
from projections.postgres import connect
from services.runtime.process.settings import Settings


@pytest.mark.anyio
async def test_a_server_without_tls_is_refused_where_the_url_asks_for_it(
    postgres_server: PostgresServer, tmp_path: Path
) -> None:
    authority_in(tmp_path)
    (tmp_path / "password").write_text("never sent")
    settings = Settings(
        postgres_url=f"{postgres_server.url()}?sslmode=verify-full&sslrootcert={tmp_path / 'ca.crt'}",
        postgres_password_file=tmp_path / "password",
    )
    assert "never%20sent" in settings.database_url
    with pytest.raises(ConnectionError, match="rejected SSL upgrade"):
        await connect(settings.database_url, timeout_seconds=60, command_timeout_seconds=60)
