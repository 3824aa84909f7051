"""Help, completion, the reference page, and what a quick start must not import."""

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from muster.cli import reference
from muster.cli.command import examples_of
from muster.cli.exits import ExitCode
from muster.cli.main import command_line
from muster.cli.nouns import NOUNS, root_help
from tests.support.shapes import ShapeServer

HEAVY = ("httpx", "pydantic", "rich", "yaml", "asyncio", "services", "projections", "joserfc", "msgspec")
LEAVES = reference.leaves(command_line(), "muster")


@pytest.mark.parametrize(("path", "found"), LEAVES, ids=[path for path, _ in LEAVES])
def test_help_says_what_it_does_then_shows_examples_then_options(muster: Any, path: str, found: Any) -> None:
    text = muster(*path.split()[1:], "--help").out
    assert text.strip().startswith((found.help or "").strip().split("\n")[0][:40])
    assert (
        text.index("Examples:") < text.index("Usage:") < text.index("Options:" if "Options:" in text else "Connection")
    )
    for example in examples_of(found.callback).strip().splitlines():
        assert example.strip() in text


def test_up_offers_all_that_its_supervisor_takes_and_passes_it_on(muster: Any) -> None:
    def run(module: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", module, *arguments]
        return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)

    flags = set(re.findall(r"--[a-z-]+", run("muster.embedded.up", "--help").stdout)) - {"--help"}
    assert "--accept-shared-pods" in flags
    assert flags <= set(re.findall(r"--[a-z-]+", muster("up", "--help").out))
    ran = run("muster.cli.main", "up", "--demo", "--accept-shared-pods", "--port=70000")
    assert "--port is 0 to 65535, not 70000" in ran.stderr


def test_the_reference_page_and_the_field_list_are_current() -> None:
    assert reference.FIELDS_FILE.read_text(encoding="utf-8") == reference.fields_module()
    assert reference.REFERENCE_FILE.read_text(encoding="utf-8") == reference.reference_page()


def test_a_first_word_brings_its_own_commands_as_the_whole_does() -> None:
    whole = command_line()
    for word, command in whole.commands.items():
        alone = command_line(word)
        assert len(alone.commands) < len(whole.commands)
        assert [path for path, _ in reference.leaves(alone.commands[word], word)] == [
            path for path, _ in reference.leaves(command, word)
        ]
    assert command_line("no-such-word").commands.keys() == whole.commands.keys()


def test_the_help_of_the_whole_lists_every_first_word_with_what_it_says_of_itself(muster: Any) -> None:
    whole = command_line()
    assert set(NOUNS) == set(whole.commands)
    for word, noun in NOUNS.items():
        assert " ".join((whole.commands[word].help or "").split()).startswith(noun.summary)
    for width in (50, 80, 100, 250):
        lines = root_help(width).splitlines()
        assert max(map(len, lines[lines.index("Commands:") : -len(ExitCode) - 1])) <= max(50, min(width, 100) - 2)
        assert " ".join(root_help(width).split()) == " ".join(root_help(80).split())
    asked = subprocess.run([sys.executable, "-m", "muster.cli.main", "-h"], capture_output=True, text=True, check=True)
    assert asked.stdout == muster("--quiet", "--help").out == muster().err + muster().out


def test_a_call_of_the_api_imports_nothing_heavy_either(home: Path) -> None:
    there = modules_after("--url", "http://127.0.0.1:9", "training", "list")
    assert "http" in there
    assert there.isdisjoint(HEAVY)


def modules_after(*arguments: str, **environ: str) -> set[str]:
    """Top-level modules that a run of the command line imports."""
    code = (
        "import sys\nfrom muster.cli.main import command_line, run\n"
        "run(command_line(), sys.argv[1:])\n"
        "sys.stderr.write('\\n'.join(sorted({name.partition('.')[0] for name in sys.modules})))"
    )
    ran = subprocess.run(
        [sys.executable, "-c", code, *arguments],
        capture_output=True,
        text=True,
        env=os.environ | environ,
        timeout=60,
        check=True,
        cwd=Path(__file__).parents[2],
    )
    return set(ran.stderr.splitlines())


def test_help_and_completion_import_nothing_heavy(home: Path) -> None:
    assert not modules_after("--help") & set(HEAVY)
    words = {"COMP_WORDS": "muster training submit --pri", "COMP_CWORD": "3"}
    assert not modules_after(_MUSTER_COMPLETE="complete_bash", **words) & set(HEAVY)


def complete(*words: str) -> list[str]:
    environ = {"_MUSTER_COMPLETE": "complete_bash", "COMP_WORDS": " ".join(words), "COMP_CWORD": str(len(words) - 1)}
    ran = subprocess.run(
        [sys.executable, "-m", "muster.cli.main"],
        capture_output=True,
        text=True,
        env=os.environ | environ,
        timeout=60,
        check=True,
    )
    return [line for line in ran.stdout.splitlines() if line]


def test_a_shell_completes_commands_flags_values_and_live_names(api: ShapeServer) -> None:
    assert complete("muster", "tr") == ["training"]
    assert complete("muster", "training", "su") == ["submit", "suspend"]
    assert complete("muster", "training", "submit", "--gpu-mem") == ["--gpu-memory-request", "--gpu-memory-limit"]
    assert complete("muster", "training", "submit", "--priority", "very") == ["very-low", "very-high"]
    assert complete("muster", "workload", "describe", "he") == ["hello"]
    assert complete("muster", "training", "standard", "logs", "he") == ["hello"]
    assert complete("muster", "project", "describe", "d") == ["default"]
    assert complete("muster", "workload", "list", "-p", "de") == ["default"]
    assert complete("muster", "cluster", "set", "l") == ["local"]


def test_a_completion_without_a_server_offers_nothing_and_says_nothing(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert complete("muster", "workload", "describe", "he") == []
    monkeypatch.setenv("MUSTER_URL", "http://127.0.0.1:9")
    assert complete("muster", "workload", "describe", "he") == []
    monkeypatch.setenv("MUSTER_CONTEXT", "nowhere")
    assert complete("muster", "workload", "describe", "he") == []


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_script_for_a_shell_is_printed(muster: Any, shell: str) -> None:
    assert "_MUSTER_COMPLETE" in muster("completion", shell).out
    assert muster("completion", "tcsh").code == 2
