"""Help, completion, the reference page, and what a quick start must not import."""

import os
import re
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from events.workload.fields.creation import DistributedCreation
from events.workload.kinds import KINDS
from muster.cli import reference
from muster.cli.command import examples_of
from muster.cli.complete import answer, offered
from muster.cli.completion_data import FLAGS, SHARED_FLAGS
from muster.cli.distributed import FRAMEWORKS
from muster.cli.exits import ExitCode
from muster.cli.main import _from_the_noun, command_line
from muster.cli.nouns import NOUNS, root_help
from muster.cli.training_flags import MASTER_SECTION, field_options
from tests.support.shapes import WORKLOAD_ID, Reply, ShapeServer, workload_row

HEAVY = ("httpx", "pydantic", "rich", "yaml", "asyncio", "services", "projections", "joserfc", "msgspec")


@cache
def whole_line() -> Any:
    """Of all commands: to make it takes as long as most tests."""
    return command_line()


@cache
def leaves() -> list[tuple[str, Any]]:
    """Every command, with the line that asks for it."""
    return reference.leaves(whole_line(), "muster")


def test_help_says_what_it_does_then_shows_examples_then_options(muster: Any, subtests: pytest.Subtests) -> None:
    for path, found in leaves():
        with subtests.test(path):
            text = muster(*path.split()[1:], "--help").out
            assert text.strip().startswith((found.help or "").strip().split("\n")[0][:40])
            options = "Options:" if "Options:" in text else "Connection"
            assert text.index("Examples:") < text.index("Usage:") < text.index(options)
            for example in examples_of(found.callback).strip().splitlines():
                assert example.strip() in text


def test_up_offers_all_that_its_supervisor_takes_and_passes_it_on(muster: Any) -> None:
    def run(module: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", module, *arguments]
        return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)

    flags = set(re.findall(r"--[a-z-]+", run("muster.embedded.up", "--help").stdout)) - {"--help"}
    assert "--accept-shared-pods" in flags
    assert flags <= set(re.findall(r"--[a-z-]+", muster("up", "--help").out))
    ran = run("muster.cli.main", "up", "--demo", "--accept-shared-pods", "--context=a b")
    told = "muster: --context is of letters, digits, '-', '_' and '.', at most 63, not 'a b'\n  → muster up --help\n"
    assert (ran.returncode, ran.stderr) == (2, told)


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ("--port=70000", "--port: 70000 is more than 65535"),
        ("--port=http", "--port: 'http' is not a whole number"),
        ("--gpus=-1", "--gpus: -1 is less than 0"),
        ("--log-level=loud", "--log-level: 'loud' is none of debug, info, warning, error"),
    ],
)
def test_what_up_cannot_take_is_told_as_by_every_other_command(muster: Any, given: str, told: str) -> None:
    ran = muster("up", given)
    assert (ran.code, ran.err) == (2, f"muster: {told}\n")


def test_the_reference_page_and_the_table_of_completions_are_current() -> None:
    assert reference.COMPLETION_FILE.read_text(encoding="utf-8") == reference.completion_module()
    assert reference.REFERENCE_FILE.read_text(encoding="utf-8") == reference.reference_page()


def paths(group: Any) -> list[str]:
    return [path for path, _ in reference.leaves(group, "")]


def test_the_first_words_bring_their_own_commands_as_the_whole_does() -> None:
    for path, command in {path.rpartition(" ")[0]: (path, command) for path, command in leaves()}.values():
        (alone,) = reference.leaves(command_line(*path.split()[1:], "--quiet"), "muster")
        assert alone[0] == path
        assert [one.opts for one in alone[1].params] == [one.opts for one in command.params]
    whole = whole_line()
    for words in (("training", "--help"), ("training", "lsit"), ("training", "standard", "list")):
        assert paths(command_line(*words).commands["training"]) == paths(whole.commands["training"])
    for word, command in whole.commands.items():
        alone = command_line(word)
        assert len(alone.commands) < len(whole.commands)
        assert [path for path, _ in reference.leaves(alone.commands[word], word)] == [
            path for path, _ in reference.leaves(command, word)
        ]
    assert command_line("no-such-word").commands == {}
    for words in (("--context", "a", "-q", "training", "list"), ("--url=http://a", "--debug", "training", "list")):
        (listed,) = reference.leaves(command_line(*words), "muster")
        assert listed[0] == "muster training list"
    for words in ((), ("-h",), ("--no-such-flag", "training"), ("--context",)):
        assert _from_the_noun(words) == (), "so that all are there"


def test_the_help_of_the_whole_lists_every_first_word_with_what_it_says_of_itself(muster: Any) -> None:
    whole = whole_line()
    assert set(NOUNS) == set(whole.commands)
    for word, noun in NOUNS.items():
        assert " ".join((whole.commands[word].help or "").split()).startswith(noun.summary)
    for width in (50, 80, 100, 250):
        lines = root_help(width).splitlines()
        assert max(map(len, lines[lines.index("Commands:") : -len(ExitCode) - 1])) <= max(50, min(width, 100) - 2)
        assert " ".join(root_help(width).split()) == " ".join(root_help(80).split())
    asked = subprocess.run([sys.executable, "-m", "muster.cli.main", "-h"], capture_output=True, text=True, check=True)
    bare = muster()
    assert asked.stdout == muster("--quiet", "--help").out == bare.err + bare.out


def test_a_call_of_the_api_imports_nothing_heavy_either(home: Path) -> None:
    there = modules_after("--url", "http://127.0.0.1:9", "training", "list")
    assert "http" in there
    assert there.isdisjoint(HEAVY)


def modules_after(*arguments: str, **environ: str) -> set[str]:
    """Top-level modules that a run of the command line imports."""
    code = (
        "import sys\nfrom muster.cli.main import _from_the_noun, command_line, run\n"
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


def test_help_imports_nothing_heavy(home: Path) -> None:
    assert not modules_after("--help") & set(HEAVY)


def test_a_completion_does_not_even_import_what_reads_commands(api: ShapeServer) -> None:
    """Nothing is asserted of time: what took it is left out."""
    for words in ("muster training submit x --pri", "muster training logs hello --pod m", "muster workload list -l t"):
        environ = {"_MUSTER_COMPLETE": "complete_bash", "COMP_WORDS": words, "COMP_CWORD": str(len(words.split()) - 1)}
        there = modules_after_completion(environ)
        assert there.isdisjoint({*HEAVY, "typer", "difflib"}), words


def modules_after_completion(environ: dict[str, str]) -> set[str]:
    code = (
        "import sys\nfrom muster.cli.main import main\nsys.argv = ['muster']\nmain()\n"
        "sys.stderr.write('\\n'.join(sorted({name.partition('.')[0] for name in sys.modules})))"
    )
    ran = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        env=os.environ | environ,
        timeout=60,
        check=True,
        cwd=Path(__file__).parents[2],
    )
    return set(ran.stderr.splitlines())


def complete(*words: str) -> list[str]:
    """In this process; below, each shell asks one of its own."""
    environ = {"COMP_WORDS": " ".join(words), "COMP_CWORD": str(len(words) - 1)}
    return [line for line in answer(os.environ | environ, "bash").splitlines() if line]


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
    assert complete("muster", "top", "") == ["projects", "users", "pools", "nodes", "workloads"]
    assert complete("muster", "top", "pools", "--sort-by", "free.g") == ["free.gpus"]
    assert complete("muster", "top", "-p", "de") == ["default"]
    assert complete("muster", "-q", "workl") == ["workload"]
    assert complete("muster", "training", "--") == ["--help"]
    assert complete("muster", "workload", "lsit", "") == []
    assert complete("muster", "training", "submit", "x", "--", "--pri") == []
    assert complete("muster", "training", "submit", "--priority=hi", "--dry") == ["--dry-run"]
    assert complete("muster", "training", "submit", "--priority=hi") == ["--priority=high"]
    assert complete("muster", "training", "submit", "--priority", "=", "hi") == ["high"], "as bash parts it"


def test_a_shell_completes_phases_columns_pools_pods_labels_and_clusters(api: ShapeServer) -> None:
    pools = [{"name": "a100"}, {"name": "h100"}, {"name": "a100"}]
    api.on("GET", "/node-pools", Reply(body={"nodePools": pools}))
    pods = [{"name": "main-0", "phase": "Failed"}, {"name": "main-0", "phase": "Running"}, {"name": "main-1"}]
    api.on("GET", f"/workloads/{WORKLOAD_ID}/pods", Reply(body={"pods": pods}))
    rows = [workload_row(labels=["stage=dev", "team=vision"]), workload_row(labels=["team=nlp"])]
    api.on("GET", "/workloads", Reply(body={"workloads": rows, "next": None}))
    assert complete("muster", "workload", "list", "--status", "p") == ["Pending"]
    assert complete("muster", "workload", "list", "--columns", "name,ph") == [
        "name,phase", "name,phaseMessage", "name,phaseReason", "name,phaseUpdatedAt",
    ]  # fmt: skip
    assert complete("muster", "workload", "list", "--sort-by", "created") == ["createdAt"]
    assert complete("muster", "workload", "pods", "--columns", "exit") == ["exitCode"]
    assert complete("muster", "training", "submit", "x", "--node-pools", "a100,") == ["a100,a100", "a100,h100"]
    assert complete("muster", "nodepool", "remove", "h") == ["h100"]
    assert complete("muster", "training", "logs", "hello", "--pod", "") == ["main-0", "main-1"]
    assert complete("muster", "workload", "list", "-l", "te") == ["team=nlp", "team=vision"]
    assert complete("muster", "workload", "list", "-l", "team=nlp,st") == ["team=nlp,stage=dev"]
    assert complete("muster", "training", "submit", "x", "--cluster", "") == ["local"]
    assert complete("muster", "workload", "list", "-o", "js") == ["json", "jsonl", "jsonpath="]
    assert complete("muster", "log", "list", "--type", "podst") == ["PodStarting", "PodStopped"]
    assert complete("muster", "audit", "list", "--type", "Cord") == ["CordonNode"]
    assert complete("muster", "audit", "list", "--outcome", "r") == ["refused"]


@pytest.mark.parametrize(
    ("shell", "environ", "told"),
    [
        ("zsh", {}, """_arguments '*: :(("hello":"Running"))'\n"""),
        ("fish", {"_TYPER_COMPLETE_FISH_ACTION": "get-args"}, "hello\tRunning\n"),
        ("bash", {"COMP_WORDS": "muster workload pods he", "COMP_CWORD": "3"}, "hello\n"),
    ],
)
def test_each_shell_is_answered_as_its_script_reads(
    api: ShapeServer, shell: str, environ: dict[str, str], told: str
) -> None:
    asked = {"_MUSTER_COMPLETE": f"complete_{shell}", "_TYPER_COMPLETE_ARGS": "muster workload pods he"}
    command = [sys.executable, "-m", "muster.cli.main"]
    ran = subprocess.run(command, capture_output=True, text=True, env=os.environ | asked | environ, check=True)
    assert ran.stdout == told


@pytest.mark.parametrize(("words", "code"), [("muster workload pods he", 0), ("muster workload pods x ", 1)])
def test_fish_is_told_whether_there_is_anything(api: ShapeServer, words: str, code: int) -> None:
    asked = {
        "_MUSTER_COMPLETE": "complete_fish",
        "_TYPER_COMPLETE_ARGS": words,
        "_TYPER_COMPLETE_FISH_ACTION": "is-args",
    }
    ran = subprocess.run([sys.executable, "-m", "muster.cli.main"], env=os.environ | asked, check=False)
    assert ran.returncode == code


def test_the_table_knows_every_flag_of_every_command() -> None:
    for path, found in leaves():
        options = reference.options_of(found)
        flags = {name for one in options for name in (*one.opts, *one.secondary_opts) if name.startswith("-")}
        assert {name for name, _ in offered(path.split()[1:], "-")} == flags | {"--help"}, path


def test_no_command_takes_a_flag_of_the_connection_for_something_else() -> None:
    assert {"--context", "--url", "--token", "--ca-file", "--debug", "--quiet", "--no-color"} <= SHARED_FLAGS.keys()


def test_every_table_offers_its_columns() -> None:
    without = {path for path in FLAGS if "--columns" in FLAGS[path] and not FLAGS[path]["--columns"][1]}
    assert without == {
        "doctor", "version", "department describe", "project describe", "cluster describe", "node describe",
        "calendar maintenance describe", "calendar reservation describe",
        "service-account describe",
        "context list", "context show", "log verify", "diff", "backup", "restore", "user erase",
        "explain", "explain-field", "credentials rotate-key",
    }, "what is shown as pairs, or has no columns of its own"  # fmt: skip


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


def test_each_flag_of_a_master_says_so(muster: Any) -> None:
    for word in FRAMEWORKS:
        told = " ".join(muster("training", word, "submit", "--help").out.split())
        flags = re.findall(r"(--master-[a-z-]+)", told)
        assert "--master-create-home-dir" in flags
    master = [option for option in field_options(DistributedCreation) if option.rich_help_panel == MASTER_SECTION]
    silent = [option.opts[0] for option in master if not (option.help or "").startswith("Of the master. ")]
    assert silent == ["--master-no-pvcs"], "whose own words say it"


def test_no_framework_offers_a_flag_that_it_always_refuses(muster: Any) -> None:
    offering = {word for word in FRAMEWORKS if "--no-master" in muster("training", word, "submit", "--help").out}
    assert offering == FRAMEWORKS.keys() - {"mpi"}
    assert muster("training", "mpi", "submit", "a", "-i", "i", "--no-master", "--dry-run=client").code == ExitCode.USAGE


@pytest.mark.parametrize("verb", ["suspend", "resume", "delete"])
def test_the_help_says_with_what_wait_does_not_go(muster: Any, verb: str) -> None:
    told = " ".join(muster("workload", verb, "--help").out.split())
    assert (
        "Goes with workloads that are named, not with those that filters choose, and not with -o or --dry-run." in told
    )


def test_a_flag_is_mandatory_only_where_the_command_needs_it() -> None:
    """A flag of an object that may be left out gives the object; a master has the image of its workers."""
    told = {
        option.opts[-1]: option.help or ""
        for kind in KINDS.values()
        for option in field_options(kind.creation)
        if "Mandatory" in (option.help or "")
    }
    assert set(told) == {"-i", "--serving-port"}
