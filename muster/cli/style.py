"""From the flags on output to how it is to look: formats, columns, order, times. Loaded with every command."""

from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

from events.nearest import did_you_mean
from muster.cli.exits import usage
from muster.cli.output import Column, Format, Style, find_column

if TYPE_CHECKING:
    from muster.cli.jsonpath import Template

TEMPLATE: Final = f"{Format.JSONPATH}="
"""How the value of -o begins where a template follows."""
_OTHERS: Final = ("custom-columns", "go-template", "templatefile", "jsonpath-")
"""Of kubectl's formats, those that are told otherwise here."""
FORMATS: Final = tuple(f"{TEMPLATE}" if one is Format.JSONPATH else str(one) for one in Format)


def formats(incomplete: str) -> list[str]:
    """What a shell offers for -o."""
    return [word for word in FORMATS if word.startswith(incomplete)]


def style_of(given: dict[str, Any], *, command: str, columns: Callable[[], Sequence[Column]]) -> Style:
    """Raises Problem (usage).

    Args:
        given: values of the flags, by parameter; a command need not have all.
        command: its words after `muster`.
        columns: of its table.
    """
    form, template = _format(given)
    asked = _listed(",".join(given.get("columns") or ()))
    usual: tuple[str, ...] = ()
    if given.get("set_default_columns"):
        usual = _kept(command, [find_column(columns(), name).key for name in asked])
    elif "set_default_columns" in given and form is Format.TABLE and not asked:
        from muster.cli.preferences import columns_of

        usual = columns_of(command)
    sort = _listed(given.get("sort"))
    for name in sort:
        find_column(columns(), name.removeprefix("-"))
    return Style(
        format=form,
        template=template,
        columns=asked,
        usual=usual,
        sort=sort,
        headers=not given.get("no_headers"),
        clock=_clock(given),
    )


def _listed(given: str | None) -> tuple[str, ...]:
    return tuple(name.strip() for name in (given or "").split(",") if name.strip())


def _format(given: dict[str, Any]) -> "tuple[Format, Template | None]":
    asked = [chosen for flag, chosen in (("json", Format.JSON), ("yaml", Format.YAML)) if given[flag]]
    if len(asked) > 1:
        raise usage("--json and --yaml cannot be used together", todo="give one of them")
    if asked:
        return asked[0], None
    text: str = given["output"]
    if text.startswith(TEMPLATE):
        from muster.cli.jsonpath import TemplateError, parse_template

        try:
            return Format.JSONPATH, parse_template(text.removeprefix(TEMPLATE))
        except TemplateError as error:
            raise usage(f"-o jsonpath: {error}") from error
    word = text.lower()
    if word == Format.JSONPATH:
        raise usage("-o jsonpath needs a template", todo="write -o jsonpath='{.name}'; `[*]` is each row of a list")
    if word.startswith(_OTHERS):
        raise usage(f"-o {word.partition('=')[0]} is not understood", todo="--columns A,B, or -o jsonpath='{.name}'")
    if word not in set(Format):
        hint = did_you_mean(text, FORMATS)
        raise usage(f"--output: {text!r} is none of {', '.join(FORMATS)}" + (f"; {hint}" if hint else ""))
    return Format(word), None


def _kept(command: str, keys: list[str]) -> tuple[str, ...]:
    from muster.cli.preferences import keep_columns

    keep_columns(command, keys)
    return tuple(keys)


def in_utc(moment: datetime) -> datetime:
    return moment.astimezone(UTC)


def _clock(given: dict[str, Any]) -> Callable[[datetime], datetime] | None:
    """What brings a time into the zone that was asked for. Raises Problem (usage)."""
    asked = [flag for flag, value in (("--utc", "utc"), ("--local", "local"), ("--tz", "tz")) if given.get(value)]
    if len(asked) > 1:
        raise usage(f"{asked[0]} and {asked[1]} cannot be used together", todo="give one of them")
    if given.get("tz"):
        return _zone(given["tz"])
    if given.get("local"):
        return datetime.astimezone
    return in_utc if given.get("utc") else None


def _zone(name: str) -> Callable[[datetime], datetime]:
    from zoneinfo import ZoneInfo, available_timezones

    try:
        zone = ZoneInfo(name)
    except (ValueError, OSError, KeyError):
        known = available_timezones()
        if not known:
            raise usage(
                "--tz: this machine has no database of time zones",
                todo="`pip install tzdata` brings one; --local works",
            ) from None
        hint = did_you_mean(name, known)
        raise usage(f"--tz: there is no time zone {name!r}", todo=hint or "write it as Europe/Paris, or UTC") from None
    return lambda moment: moment.astimezone(zone)
