"""A noun with its article. Pure, and light: the command line reads it."""

from typing import Final

SPELT: Final = ("NFS", "S3")
"""They are spoken letter by letter, and begin with a vowel."""


def with_article(noun: str) -> str:
    return f"{'an' if noun.startswith((*'aeiou', *SPELT)) else 'a'} {noun}"
