"""Which context `muster up` writes: never one that another living `muster up` uses, and it says what changed."""

from pathlib import Path

import pytest

from muster.cli.contexts import Context, Contexts, config_file, save_contexts, write_context
from muster.embedded.datadir import open_data_dir
from muster.embedded.processes import StartError
from muster.embedded.up import context_change, contexts_for


@pytest.fixture(autouse=True)
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    return config_file({"XDG_CONFIG_HOME": str(tmp_path / "config")})


def test_the_context_of_another_living_one_is_left_alone_and_a_name_is_proposed(tmp_path: Path) -> None:
    with open_data_dir(tmp_path / "first") as first:
        write_context("local", "http://127.0.0.1:8080", "t", first.root, "default")
        with pytest.raises(
            StartError, match=r"'local' is of the `muster up` that runs with .*first .*--context local-2"
        ):
            contexts_for("local", tmp_path / "second")
        assert contexts_for("local-2", tmp_path / "second").current == "local"
        assert contexts_for("local", first.root).current == "local", "its own it may write"


def test_the_context_of_one_that_has_ended_is_taken_over(tmp_path: Path) -> None:
    with open_data_dir(tmp_path / "first") as first:
        write_context("local", "http://127.0.0.1:8080", "t", first.root, "default")
    assert contexts_for("local", tmp_path / "second").contexts["local"].url == "http://127.0.0.1:8080"


def test_contexts_that_cannot_be_read_are_told_before_anything_starts(config: Path, tmp_path: Path) -> None:
    config.parent.mkdir(parents=True)
    config.write_text("no = toml = at all")
    with pytest.raises(StartError, match="cannot be read"):
        contexts_for("local", tmp_path / "data")


HERE = Context(url="http://127.0.0.1:8080", data_dir="/data")
ELSEWHERE = Context(url="https://muster.example.com")


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        (Contexts(), Contexts(current="local", contexts={"local": HERE}), "`local` is http://127.0.0.1:8080 now"),
        (
            Contexts(current="local", contexts={"local": HERE}),
            Contexts(current="local", contexts={"local": HERE}),
            "",
        ),
        (
            Contexts(current="local", contexts={"local": ELSEWHERE}),
            Contexts(current="local", contexts={"local": HERE}),
            "`local` is http://127.0.0.1:8080 now; it was https://muster.example.com",
        ),
        (
            Contexts(current="prod", contexts={"prod": ELSEWHERE}),
            Contexts(current="prod", contexts={"prod": ELSEWHERE, "local": HERE}),
            "`local` is http://127.0.0.1:8080 now; `prod` stays the current one",
        ),
    ],
    ids=["made", "as it was", "another place", "beside the current one"],
)
def test_what_changed_is_said(config: Path, before: Contexts, after: Contexts, said: str) -> None:
    save_contexts(config, after)
    assert context_change("local", before, after) == said
