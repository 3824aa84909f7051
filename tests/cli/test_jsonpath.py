"""Templates of `-o jsonpath=…`: kubectl's grammar, and what is beyond it is refused with its place."""

import io
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from muster.cli.jsonpath import TemplateError, parse_template
from muster.cli.output import Format, Output, Style
from muster.cli.values import Json
from tests.support.shapes import Reply, ShapeServer, workload_row

LIST: list[Json] = [
    {"name": "a", "phase": "Running", "n": 1, "nodes": ["x", "y", "z"], "labels": {"app.io/name": "web"}, "ok": True},
    {"name": "b", "phase": "Failed", "n": 2.5, "nodes": [], "exit": None, "spec": {"name": "inner", "n": 2}},
]


@pytest.mark.parametrize(
    ("template", "written"),
    [
        ("{[*].name}", "a b"),
        ("{.items[*].name}", "a b"),
        ("{$.items[1].name}", "b"),
        ("names: {[*].name}.", "names: a b."),
        ('{range .items[*]}{.name}{"\\t"}{.phase}{"\\n"}{end}', "a\tRunning\nb\tFailed\n"),
        ("{range [*]}{.name}:{range .nodes[*]}{@},{end};{end}", "a:x,y,z,;b:;"),
        ("{range [*]}{.name} of {$[*].name} {end}", "a of a b b of a b "),
        ('{[?(@.phase=="Running")].name}', "a"),
        ("{[?(@.phase != 'Running')].name}", "b"),
        ("{[?(@.n>1)].name}", "b"),
        ("{[?(@.n>=1)].n}", "1 2.5"),
        ("{[?(@.n<'2')].n}", ""),
        ("{[?(@.ok==true)].name}", "a"),
        ("{[?(@.exit==null)].name}", "b"),
        ("{[?(@.spec)].name}", "b"),
        ("{[?(@.spec.n < @.n)].name}", "b"),
        ('{[?(@.nodes[0]=="x")].name}', "a"),
        ("{[0].nodes[0,2]}", "x z"),
        ("{[0].nodes[-1]}", "z"),
        ("{[0].nodes[1:]}", "y z"),
        ("{[0].nodes[:2]}", "x y"),
        ("{[0].nodes[0:3:2]}", "x z"),
        ("{[0].nodes[9]}", ""),
        ("{[-1:].name}", "b"),
        ("{[0]['name', 'phase']}", "a Running"),
        ("{[0].labels.app\\.io/name}", "web"),
        ("{[0].labels['app.io/name']}", "web"),
        ("{..name}", "a b inner"),
        ("{[1].spec.*}", "inner 2"),
        ("{[1].spec}", '{"name":"inner","n":2}'),
        ("{[0].nodes}", '["x","y","z"]'),
        ("{[0].ok} {[1].exit} {[1].nose}", "true  "),
        ("{[1].name.first}", ""),
        ('{"{}"}', "{}"),
    ],
)
def test_a_template_is_written_as_kubectl_writes_it(template: str, written: str) -> None:
    assert parse_template(template).text(LIST) == written


@pytest.mark.parametrize(
    ("template", "told"),
    [
        ("", "write '{.name}'"),
        (".name", "'.name' has no {…}; write '{.name}'"),
        ("name", "write '{.name}'"),
        ("{name}", "at character 2: a path begins with . or [ or $ or @: write {.name}"),
        ("{}", "at character 2: a path begins"),
        ("{.name", "at character 7: '}' is missing"),
        ("{.name,.phase}", "at character 7: ',' is not understood here"),
        ("{.name | upper}", "at character 8: '|' is not understood here"),
        ("{..}", "at character 4: no name of a field"),
        ("{range .a}{.b}", "a {range …} has no {end}"),
        ("x{end}", "at character 2: {end} without a {range …}"),
        ("{if .a}", "at character 2: a path begins"),
        ("{[a]}", "at character 2: in [ ] stands a number"),
        ("{[0}", "no ']' for the '[' at 2"),
        ("{[1,]}", "a number is missing after ','"),
        ("{['a',]}", "a name in quotes is missing after ','"),
        ("{['a}", "at character 3: the quote ' does not end"),
        ("{[0:1:0]}", "the step of a slice must be 1 or more"),
        ("{[?@.a]}", "a filter is written [?(@.field==…)]"),
        ("{[?(@.a && @.b)]}", "at character 9: a filter compares once"),
        ("{[?(@.a=~'x')]}", "at character 8: a filter compares once"),
        ("{[?(@.a==)]}", "a path, a number, true, false, null or a text in quotes is missing"),
        ('{"\\q"}', "'\\q' is not understood in quotes"),
        ("{range .a}" * 9 + "{end}" * 9, "more than 8 ranges within each other"),
        ("{.a" + "[?(@" * 9 + ")]" * 9 + "}", "more than 8 filters within each other"),
        ("{.a}" * 1025, "4100 characters are too many; at most 4096"),
    ],
)
def test_what_is_not_in_the_grammar_is_refused_with_its_place(template: str, told: str) -> None:
    with pytest.raises(TemplateError) as refused:
        parse_template(template)
    assert told in str(refused.value)


@given(st.text(alphabet="{}[]().*?@$'\"\\ an01:,=<>!-\n", max_size=40))
def test_any_text_is_a_template_or_is_refused(text: str) -> None:
    try:
        template = parse_template(text)
    except TemplateError:
        return
    template.text(LIST)


def test_every_list_and_every_one_thing_takes_a_template(api: ShapeServer, muster: Any) -> None:
    rows = [workload_row(), workload_row(id="other", name="b\x1b[2J", phase="Failed")]
    api.on("GET", "/workloads", Reply(body={"workloads": rows, "next": None}))
    listed = muster("workload", "list", "-o", 'jsonpath={range .items[*]}{.name}={.phase}{"\\n"}{end}')
    assert (listed.code, listed.out) == (0, "hello=Running\nb\x1b[2J=Failed\n")
    assert muster("workload", "list", "-o", "jsonpath={[*].phase}").out == "Running Failed"
    assert muster("project", "list", "-o", "jsonpath={[0].name}").out == "default"
    api.on("GET", "/workloads", Reply(body={"workloads": rows[:1], "next": None}))
    assert muster("workload", "describe", "hello", "-o", "jsonpath={.phase} {.name}").out == "Running hello"


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ("jsonpath={.name", "-o jsonpath: at character 7: '}' is missing"),
        ("jsonpath", "-o jsonpath needs a template"),
        ("jsonpath=", "write '{.name}'"),
        ("custom-columns=A:.name", "-o custom-columns is not understood\n  → --columns A,B"),
        ("go-template={{.name}}", "-o go-template is not understood"),
        ("jsn", "'jsn' is none of table, wide, json"),
    ],
)
def test_a_wrong_format_is_told_before_anything_is_asked(api: ShapeServer, muster: Any, given: str, told: str) -> None:
    ran = muster("workload", "list", "-o", given)
    assert (ran.code, ran.out) == (2, "")
    assert told in ran.err
    assert api.requests == []


def test_a_terminal_gets_a_line_and_nothing_that_moves_its_cursor() -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    shown, piped = Terminal(), io.StringIO()
    for stdout in (shown, piped):
        style = Style(format=Format.JSONPATH, template=parse_template("{.name}"))
        Output(style, stdout=stdout).one({"name": "a\x1b[2J"}, lambda: None)
    assert (shown.getvalue(), piped.getvalue()) == ("a\\x1b[2J\n", "a\x1b[2J")
