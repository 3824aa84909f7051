"""NATS may use as much memory as the subjects need that its log can hold."""

from pathlib import Path

import pytest

from muster.embedded.nats_server import environment
from muster.embedded.providers.nats import LOG_MAX_BYTES, memory_environment
from services.runtime.nats import declared
from services.runtime.process.settings import Settings

MEASURED_BYTES = 240 * 10**6
"""What a million subjects need at rest."""


def test_the_default_is_that_of_the_setting() -> None:
    assert Settings.model_fields["log_max_bytes"].default == LOG_MAX_BYTES == declared.LOG_MAX_BYTES


@pytest.mark.parametrize("million_subjects", [1, 2, 10])
def test_the_limit_is_above_what_the_subjects_of_a_full_log_need(million_subjects: int) -> None:
    given = memory_environment(million_subjects * 10**6 * 2048)
    limit = int(given["GOMEMLIMIT"].removesuffix("MiB")) * 2**20
    assert limit > 1.5 * million_subjects * MEASURED_BYTES


def test_the_server_of_compose_may_use_what_the_log_may_grow_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MUSTER_LOG_MAX_BYTES", str(2**40))
    assert int(environment(tmp_path)[declared.MAX_FILE_STORE]) > 2**40 + sum(
        one.max_bytes for one in declared.DECLARED[1:]
    )


def test_compose_has_the_figure_for_the_default_limit_of_the_log() -> None:
    compose = (Path(__file__).parents[2] / "docker-compose.yml").read_text()
    for name, value in memory_environment(LOG_MAX_BYTES).items():
        assert f'{name}: "{value}"' in compose or f"{name}: ${{MUSTER_NATS_{name}:-{value}}}" in compose
