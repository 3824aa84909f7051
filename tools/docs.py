"""Checks the documentation: every relative link leads somewhere; every `make` target and `muster` command that is named
exists; the glossary has each word once, in order.

Usage: python tools/docs.py
"""

import re
import sys
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

from muster.cli.main import command_line
from muster.cli.reference import leaves

ROOT = Path(__file__).resolve().parent.parent
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
MAKE = re.compile(r"(?:`|^\s{4})make ([a-z][a-z0-9-]*)", re.MULTILINE)
MUSTER = re.compile(r"(?:`|^\s{4})(muster(?: [a-z][a-z0-9-]*)+)", re.MULTILINE)
TARGET = re.compile(r"^([a-z][a-z0-9-]*):", re.MULTILINE)
HEADING = re.compile(r"^#+\s+(.+)$", re.MULTILINE)


def pages() -> list[Path]:
    """The Markdown files that are ours."""
    return sorted(
        [
            *ROOT.glob("*.md"),
            *(ROOT / "docs").rglob("*.md"),
            *(ROOT / "examples").rglob("*.md"),
            *(ROOT / "clients").rglob("*.md"),
        ]
    )


def anchors(text: str) -> set[str]:
    """What `#…` may name in a page: its headings in lower case, spaces as dashes, without other signs."""
    return {re.sub(r"[^\w\- ]", "", heading).strip().lower().replace(" ", "-") for heading in HEADING.findall(text)}


def broken_links(page: Path, text: str) -> Iterator[str]:
    """Relative links of a page that lead nowhere."""
    for link in LINK.findall(text):
        if re.match(r"[a-z]+:", link):
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        if not target.exists():
            yield f"{page.relative_to(ROOT)}: the link {link} leads to nothing"
        elif anchor and target.suffix == ".md" and anchor not in anchors(target.read_text()):
            yield f"{page.relative_to(ROOT)}: the link {link} names no heading of that page"


def unknown_targets(page: Path, text: str, targets: set[str]) -> Iterator[str]:
    """`make` targets that a page names and the Makefile lacks."""
    for target in MAKE.findall(text):
        if target not in targets:
            yield f"{page.relative_to(ROOT)}: the Makefile has no target {target}"


def unknown_commands(page: Path, text: str, known: list[list[str]]) -> Iterator[str]:
    """Commands that a page names and `muster` lacks. Behind a command's own words may come arguments; a group may be
    named alone.
    """
    for command in MUSTER.findall(text):
        words = command.split()
        if not any(all(a == b for a, b in zip(words, verb, strict=False)) for verb in known):
            yield f"{page.relative_to(ROOT)}: there is no command {command}"


def misplaced_words(glossary: Path) -> Iterator[str]:
    """Words of the glossary that stand there twice, or not in the order of the alphabet."""
    words = [row.split("|")[1].strip().lower() for row in glossary.read_text().splitlines() if row.startswith("| ")][1:]
    for word, after in pairwise(words):
        if word >= after:
            yield f"{glossary.relative_to(ROOT)}: '{after}' stands after '{word}'"


def main() -> int:
    """Print what is wrong; the exit code says whether anything is."""
    targets = set(TARGET.findall((ROOT / "Makefile").read_text()))
    commands = [path.split() for path, _ in leaves(command_line(), "muster")]
    problems = [*misplaced_words(ROOT / "docs" / "glossary.md")]
    for page in pages():
        text = page.read_text()
        problems += [
            *broken_links(page, text),
            *unknown_targets(page, text, targets),
            *unknown_commands(page, text, commands),
        ]
    for problem in problems:
        print(problem, file=sys.stderr)
    print(f"docs: {len(pages())} pages, {len(problems)} problems")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
