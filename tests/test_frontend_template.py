"""Chat templates: the names they may use, the sandbox, the bounds."""

import contextlib
import gc
import re
from typing import Any

import pytest

from helios_dod.frontend import template as module
from helios_dod.frontend.template import ChatTemplate, TemplateError

MESSAGES: list[dict[str, Any]] = [
    {"role": "user", "content": "a <b> & 'c' é"}, {"role": "assistant", "content": "d"}]


def render(source: str, messages: list[dict[str, Any]] | None = None, **tokens: str) -> str:
    return ChatTemplate(source, tokens).render(MESSAGES if messages is None else messages)


@pytest.mark.parametrize(("source", "text"), [
    ("{{ messages[0]['content'] }}", "a <b> & 'c' é"),
    ("{{ messages[0].content | tojson }}", "\"a <b> & 'c' é\""),
    ("{{ {'b': 1, 'a': [1, 2]} | tojson(indent=1) }}", '{\n "b": 1,\n "a": [\n  1,\n  2\n ]\n}'),
    ("{% for m in messages %}{% if loop.first %}{% continue %}{% endif %}{{ m.role }}"
     "{% break %}{% endfor %}", "assistant"),
    ("{{ bos_token }}{{ add_generation_prompt }}{{ tools is none }}", "<s>TrueTrue"),
    ("{% generation %}{{ 'x' }}{% endgeneration %}", "x"),
    ("  {% if true %}\nx\n  {% endif %}\ny", "x\ny"),
    ("{{ missing }}", ""),
    ("{% set n = namespace(i=0) %}{% for m in messages %}{% set n.i = n.i + 1 %}{% endfor %}"
     "{{ n.i }}", "2"),
    ("{{ messages[0].content.split(' ')[0] }}", "a"),
])
def test_renders(source: str, text: str) -> None:
    assert render(source, bos_token="<s>") == text


def test_strftime_now() -> None:
    assert re.fullmatch(r"\d{4}-\d\d", render("{{ strftime_now('%Y-%m') }}"))


@pytest.mark.parametrize(("source", "words"), [
    ("{{ raise_exception('roles must alternate') }}", "roles must alternate"),
    ("{{ 1 / 0 }}", "ZeroDivisionError"), ("{{ messages[0].content + 1 }}", "TypeError"),
    ("{{ messages.__class__.__mro__ }}", "Security"), ("{{ ''.__class__.mro() }}", "Security"),
    ("{{ messages.append(1) }}", "Security"), ("{{ range(999999999) | list }}", "Overflow"),
    ("{% include 'x' %}", "loader"), ("{{ missing.field }}", "undefined"),
    ("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "Recursion"),
])
def test_refuses(source: str, words: str) -> None:
    with pytest.raises(TemplateError, match=re.escape(words)):
        render(source)


def test_what_is_no_unicode_is_refused() -> None:
    for source in ("{{ '\\ud800' }}", "a{{ '\\udfff' ~ 'b' }}"):
        with pytest.raises(TemplateError, match=r"no Unicode scalar value: U\+D[8F]"):
            render(source)
    with pytest.raises(TemplateError, match="no \ufffd"):
        render("{{ raise_exception('no \\ud800') }}")
    assert render("{{ '\\U0001f642' }}") == "\U0001f642"


def test_source_that_is_no_template() -> None:
    with pytest.raises(TemplateError, match="chat template"):
        ChatTemplate("{% if %}", {})


def test_output_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "OUTPUT_CHARACTERS_MAX", 1000)
    source = "{% for i in range(90) %}{{ '0123456789' }}{% endfor %}"
    assert len(render(source)) == 900
    with pytest.raises(TemplateError, match="1000 characters"):
        render(source.replace("90", "101"))
    monkeypatch.setattr(module, "RENDER_SECONDS_MAX", 0.05)
    for silent in ("{% for i in range(9999) %}{% for j in range(9999) %}{% endfor %}{% endfor %}",
                   "{% macro m() %}{% for i in range(9999) %}{% for j in range(9999) %}"
                   "{% set x = i * j %}{% endfor %}{% endfor %}{% endmacro %}{{ m() }}"):
        with pytest.raises(TemplateError, match="seconds"):
            render(silent)
    monkeypatch.setattr(module, "RENDER_SECONDS_MAX", -1.0)
    with pytest.raises(TemplateError, match="seconds"):
        render(source)


NESTED = "{% set ns = namespace(x=['x']) %}" + "{% set ns.x = [ns.x, ns.x] %}" * 40


@pytest.mark.parametrize("source", [
    "{{ 'x' * 1000000000 }}", "{{ 10 ** 10000000000 }}", "{{ 'x' | center(10000000000) }}",
    "{{ [0] * 1000000000 }}", "{{ '%1000000000d' % 1 }}", "{{ '%*d' % (10**9, 1) }}",
    "{{ 'x'.ljust(1000000000) }}", "{{ '{:1000000000}'.format(1) }}",
    "{{ '%99999d' | format(1) }}", "{{ 'a' | indent(99999999) }}",
    "{{ [] | batch(1000000000, 'x') | list }}", "{{ 'x'.zfill(99999999) }}",
    "{% set ns = namespace(x='x') %}" + "{% set ns.x = ns.x ~ ns.x %}" * 40,
    "{% set ns = namespace(x='x') %}" + "{% set ns.x = ns.x + ns.x %}" * 40,
    "{% set ns = namespace(x=['x']) %}" + "{% set ns.x = ns.x + ns.x %}" * 40,
    "{% set x = 'x' * 5000 %}{{ x.replace('x', x) }}",
    "{% set x = 'x' * 5000 %}{{ x.join([x] * 5000) }}",
    "{% set x = 'x' * 5000 %}{{ x | replace('x', x) }}", "{{ lipsum(n=100000000) }}",
    "{% set x = 'x' * 5000 %}{{ x | replace(new=x, old='x') }}",
    "{% set x = 'x' * 5000 %}{{ ([x] * 5000) | join(x) }}", "{{ [] | batch(9999999) | list }}",
    "{% set x = ('\\n' * 9999) %}{{ x | indent(first=true, width=9999) }}",
    "{{ '{:{}}'.format(1, 10**9) }}", "{% set x = 'x' * 99999 %}{{ ('{0}' * 999).format(x) }}",
    "{% set x = 'x' * 99999 %}{{ '%(a)s' * 999 % {'a': x} }}",
    "{% set x = [1] * 5000 %}{{ ([x] * 5000) | sum(start=[]) }}",
    *(NESTED + use for use in (
        "{{ ns.x }}", "{{ ns.x ~ '' }}", "{{ ns.x | string }}", "{{ ns.x | tojson }}",
        "{{ [ns.x] | join }}", "{{ '%s' % [ns.x] }}", "{{ '{}'.format(ns.x) }}", "{{ ns }}",
        "{{ ns.x | upper }}", "{{ {'a': ns.x} }}", "{{ raise_exception(ns.x) }}",
        "{{ [ns.x] | map('string') | list }}", "{{ dict(a=ns.x) | pprint }}")),
])
def test_no_operation_makes_too_much(source: str) -> None:
    """Neither while the template is compiled, which computes nothing, nor while it is rendered."""
    template = ChatTemplate(source, {})
    problem = ": .*(more than|at most|large|width|defined|supported)"
    with pytest.raises(TemplateError, match=problem):
        template.render(MESSAGES)


@pytest.mark.parametrize("source, problem", [
    ("{{ " + "a + " * 300 + "a }}", "nested parentheses"), ("{{ " + "9" * 5000 + " }}", "digits"),
    ("{% for a in b %}" * 30 + "{% endfor %}" * 30, "nested blocks"),
    ("{{ " + "[" * 500 + "]" * 500 + " }}", "recursion"), ("{{ a }}" * 20_000, "20000 tokens"),
    ("x" * (1 << 18) + "x", "262145 characters"),
    ("{% autoescape x %}{% endautoescape %}", "escaping"),
])
def test_sources_beyond_bounds(source: str, problem: str) -> None:
    with pytest.raises(TemplateError, match=problem):
        ChatTemplate(source, {})


def test_a_template_that_fails_leaves_nothing_behind() -> None:
    """Nothing of what it made waits for a collection, which may come late."""
    template = ChatTemplate("{% set a = ['x'] * 400321 %}{{ (a | sort)[0].missing.missing }}", {})
    gc.collect()
    gc.disable()
    try:
        with contextlib.suppress(TemplateError):
            template.render(MESSAGES)
        assert not [part for part in gc.get_objects() if type(part) is list and len(part) == 400321]
    finally:
        gc.enable()


def test_large_texts_are_rendered() -> None:
    """Bounds are on what is made, and grow with what is given."""
    large = [{"role": "user", "content": "line\n" * 400_000}]
    text = render("{{ messages[0].content.split('</think>')[-1].replace('\\n', ' ') | trim"
                  " ~ '!' }}", large)
    assert len(text) == 5 * 400_000
    assert render("{{ '%05.2f' % 1.5 }}{{ 2 * 3 }}{{ '-' * 3 }}"
                  "{{ '{:>8}'.format('b') }}") == "01.506---       b"


GROWING = "{% set n = namespace(l=[]) %}{% for i in range(3000) %}"


@pytest.mark.parametrize(("source", "problem"), [
    ("{{ range(9999) | join('x' * 99999) | length }}", "more than 8388608 characters"),
    ("{{ range(9999) | map('string') | join('x' * 99999) | length }}", "more than 8388608"),
    ("{% set s = 'x' * 1000000 %}{{ s.join('a' * 9999) | length }}", "more than 8388608"),
    ("{{ [1] | tojson(separators=['x' * 300000, ':']) }}", "tojson: separators of at most 4"),
    ("{{ [1] | tojson(indent=200000) }}", "tojson: an indent of at most 8"),
    ("{{ range(99999) | list | tojson(indent=10**8) | length }}", "tojson: an indent of at most"),
    ("{% set n = namespace(l=[1] * 99999) %}" + "{% set n.l = [n.l] %}" * 100
     + "{{ n.l | tojson(indent=8) | length }}", "more than 8388608"),
    ("{{ ('a ' * 9999) | wordwrap(1, true, 'x' * 200000) }}", "filter wordwrap is not supported"),
    ("{{ ('\t' * 300000).expandtabs(10000) }}", "method expandtabs is not supported"),
    ("{{ 'http://a.com' | urlize(target='x' * 200000) }}", "filter urlize is not supported"),
    ("{{ range(99999) | map('string') | map('center', 10000) | list }}", "filter center is not"),
    ("{{ (['a' * 1000] * 3000) | map('replace', 'a', 'b' * 1000) | list | length }}",
     "bytes made by its operations"),
    (GROWING + "{% set n.l = n.l + ['x' * 8000000 ~ i] %}{% endfor %}", "bytes made by"),
    ("{% set x = 'x' * 8000000 %}" + GROWING + "{% set n.l = n.l + [x[1:]] %}{% endfor %}",
     "bytes made by"),
    ("{% set x = 'x' * 8000000 %}{% macro m() %}{% for i in range(9999) %}{{ x }}{% endfor %}"
     "{% endmacro %}{{ m() | length }}", "more than 8388608"),
    ("{{ ('%9999d' * 100000) % ((1,) * 100000) }}", "format: fields of a fixed width"),
    ("{{ ('%999d' * 100000) % ((1,) * 100000) }}", "more than 8388608"),
    ("{{ '%9999d' | format(1) }}", "format: fields of a fixed width"),
    ("{{ '%.9999f' % 1.5 }}", "format: fields of a fixed width"),
    ("{{ '%(a(b))9999d' % {'a(b)': 1} }}", "format: a field without a fixed width"),
    ("{{ ('{0:9999}' * 100000).format(1) | length }}", "format: fields of a fixed width"),
    ("{{ ('{0[a]}' * 9999).format({'a': 'x' * 99999}) | length }}", "more than 8388608"),
    ("{{ (1).to_bytes(1000000000, 'big') }}", "method to_bytes is not supported"),
    ("{{ ('&' * 8000000) | e | length }}", "more than 8388608"),
    ("{{ ('ab ' * 2000000).split() | length }}", "list of more than 524288"),
    ("{{ strftime_now('%Y' * 999) }}", "strftime_now: a pattern of at most 256"),
    ("{% for i in [1] %}{{ loop.cycle(*('x',) * 99999) }}{% endfor %}", "more than 1000 arg"),
    ("{{ 'a' | indent(9) }}", "indent: an indent of at most 8"),
    *(("{% set s = 'a' * 4000000 %}{{ s" + use + " }}", "4000000 take more than 268435456 steps")
      for use in (".strip('b' * 2000000)", ".lstrip('b' * 99)", ".rstrip('b' * 99)",
                  ".rfind('ab' ~ 'a' * 99)", ".rindex('ab' ~ 'a' * 99)", " | trim('b' * 2000000)",
                  ".rsplit('ab' ~ 'a' * 99)", ".rpartition('ab' ~ 'a' * 99)")),
    ("{{ ('<!---->' * 70000) | striptags }}", "striptags: more than 65536 characters"),
    *((GROWING + "{% set n.l = [n.l, " + made + "] %}{% endfor %}", "bytes made by|2.0 seconds")
      for made in ("('x' * 2000000 ~ 'ab').rsplit('b', 1)", "(i ~ 'x' * 2000000).partition('x')",
                   "('一丁' * 200000) | list", "('ab ' * 200000).split(' ')",
                   "('一丁' * 200000) | sort")),
    *((GROWING + "{% for j in range(9999) %}{% set n.l = " + made + " %}{% endfor %}{% endfor %}",
       "bytes made by") for made in (
        "[n.l, i]", "(n.l, i)", "{i: n.l}", "[n.l" + ", []" * 999 + "]", "[n.l" + ", x" * 999 + "]",
        "[n.l, range(9999) | list]", "[n.l, {'a': 1}.items() | list]", "[n.l, namespace()]",
        "[n.l, [1, 2] | map('string') | list]", "[n.l] | select")),
    ("{% macro f() %}{% set n.l = varargs %}{% endmacro %}" + GROWING + "{{ f(n.l" + ", x" * 900
     + ") }}{% endfor %}", "bytes made by"),
    ("{% set l = [1] * 4000000 %}{% for a in l | reverse %}{{ loop.length }}{% endfor %}",
     "a list of more than 524288 values"),
])
def test_multiplying_arguments_are_refused(source: str, problem: str) -> None:
    with pytest.raises(TemplateError, match=problem):
        render(source)


PAIR = ("{% set ns = namespace(a=('x',), b=('x',), l=[1]) %}{% for i in range(60) %}"
        "{% set ns.a = (ns.a, ns.a) %}{% set ns.b = (ns.b, ns.b) %}{% endfor %}")
LISTS = PAIR.replace("(ns.a, ns.a)", "[ns.a, ns.a]").replace("(ns.b, ns.b)", "[ns.b, ns.b]")
TWICE = ("{% set ns = namespace(a=['x'], b=['x']) %}"
         "{% macro f() %}{% set ns.a = varargs %}{% endmacro %}"
         "{% macro g() %}{% set ns.b = varargs %}{% endmacro %}{% for i in range(60) %}"
         "{{ f(ns.a, ns.a) }}{{ g(ns.b, ns.b) }}{% endfor %}")
TEXTS = "{% set a = 'x' * 4000000 %}{% set b = 'x' * 4000000 %}"
DEEP = ("{% set ns = namespace(a=(1,)) %}{% for i in range(99999) %}{% set ns.a = (ns.a,) %}"
        "{% endfor %}")


@pytest.mark.parametrize("source", [
    *(made + "{% if " + use + " %}{% endif %}" for made in (PAIR, LISTS, TWICE) for use in (
        "ns.a == ns.b", "ns.a != ns.b", "ns.a < ns.b", "1 == 1 and ns.a >= ns.b", "ns.a in [ns.b]",
        "ns.a not in (ns.b,)", "ns.a is eq ns.b", "ns.a is in [ns.b]", "ns.a is lt(ns.b)",
        "[ns.a] | select('eq', ns.b) | list", "[ns.a] | reject('in', [ns.b]) | first",
        "[{'k': ns.a}] | selectattr('k', '==', ns.b) | list", "[ns.a].index(ns.b)",
        "[ns.a].count(ns.b)", "[ns.a, ns.b] | sort", "[ns.a, ns.b] | max", "[ns.a, ns.b] | min",
        "[{'k': ns.a}, {'k': ns.b}] | sort(attribute='k')",
        "[{'k': ns.a}, {'k': ns.b}] | groupby('k')",
        "[{'k': ns.a}, {'k': ns.b}] | max(attribute='k')",
        "{'a': ns.a, 'b': ns.b} | dictsort(by='value')",
        "{'a': ns.a}.items() == {'a': ns.b}.items()", "ns.a in {'a': ns.b}.values()",
        "ns.a in ([[ns.b]] | map('first'))", "ns.a in ([{'k': ns.b}] | map(attribute='k'))",
        "cycler(ns.a).items == cycler(ns.b).items")),
    *(PAIR + "{% if " + use + " %}{% endif %}" for use in (
        "{ns.a: 1}", "{}[ns.a]", "{}.get(ns.a)", "dict([(ns.a, 1)])", "[ns.a] | unique | list",
        "dict([[ns.a]] | map('list'))", "namespace([(ns.a, 1)])", "ns.a is filter",
        "{'a': 1}.keys().isdisjoint([ns.a])", "dict.fromkeys([ns.a])")),
    LISTS + "{% for x in [ns.a, ns.b] %}{{ loop.changed(x) }}{% endfor %}",
    LISTS + "{% for x in [ns.a] %}{% for y in [1, ns.b] %}{% if loop.index == 2 %}"
            "{{ ns.a in [loop.previtem, y] }}{% endif %}{% endfor %}{% endfor %}",
    LISTS + "{% for x in range(9999) if ns.a == ns.b %}{% endfor %}",
    TEXTS + "{% for i in range(99999) if a != b %}{% endfor %}",
    TEXTS + "{{ ([a] * 500000) | select('ne', b) | list | length }}",
    TEXTS + "{{ ([a] * 500000) | select('ne', b) | first }}",
    TEXTS + "{{ ([a] * 500000) == ([b] * 500000) }}", TEXTS + "{{ a in ([b] * 500000) }}",
    LISTS + "{{ ([ns.a] * 500000) | map(attribute='" + "0." * 50
    + "0') | select('none') | first }}",
    "{{ ([{}] * 500000) | map(attribute='" + "a." * 99999 + "a') | list }}",
    *(DEEP + "{% if " + use + " %}{% endif %}" for use in ("{ns.a: 1}", "ns.a == 1", "{}[ns.a]")),
    "{{ 1.5 | round(1000000000, 'floor') }}", "{{ 1.5 | round(precision=10 ** 9) }}",
])
def test_what_would_be_compared_for_ever_is_refused(
        source: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """By its size, before anything is compared, looked up or sorted; or by the time."""
    monkeypatch.setattr(module, "RENDER_SECONDS_MAX", 0.5)
    template = ChatTemplate(source, {})
    with pytest.raises(TemplateError, match=r"more than|at most|supported|Security"):
        template.render(MESSAGES)


@pytest.mark.parametrize(("source", "text"), [
    ("{{ 1 < 2 < 3 }}{{ [1, [2]] == [1, [2]] }}{{ 'a' in 'ba' }}{{ 2 not in (1, 3) }}",
     "TrueTrueTrueTrue"),
    ("{{ messages[0] == messages[1] }}{{ messages[0] in messages }}{{ 'role' in messages[0] }}",
     "FalseTrueTrue"),
    ("{{ {'a': 1}['a'] }}{{ {('b', 1): 2}[('b', 1)] }}{{ {'a': 1}.get('b', 3) }}", "123"),
    ("{{ missing == none }}{{ missing in [1] }}{{ 1 in missing }}",
     "FalseFalseFalse"),
    ("{{ messages | selectattr('role', 'eq', 'user') | map(attribute='role') | list }}",
     "['user']"),
    ("{{ messages | sort(attribute='content') | map(attribute='role') | join(',') }}",
     "user,assistant"),
    ("{{ [3, 1, 1] | unique | list }}{{ [3, 1] | max }}{{ messages | groupby('role') | length }}",
     "[3, 1]32"),
    ("{% for m in messages if m.role == 'user' %}{{ loop.length }}{{ m.role }}{% endfor %}",
     "1user"),
    ("{% set c = cycler('a', 'b') %}{{ c.next() }}{{ c.next() }}{{ c.current }}", "aba"),
    ("{% for x in [1, 1, 2] %}{{ loop.changed(x) }}{% endfor %}{{ [1, 2].index(2) }}",
     "TrueFalseTrue1"),
    ("{{ 1.25 | round(1) }}{{ [] | map('upper') | list }}{{ none | map('upper') | list }}",
     "1.2[][]"),
    ("{{ 'x' in ['X'] | map('lower') }}{{ {'b': 1, 'a': 2} | dictsort(by='value') }}",
     "True[('b', 1), ('a', 2)]"),
])
def test_comparisons_still_compare(source: str, text: str) -> None:
    assert render(source) == text


@pytest.mark.parametrize(("source", "text"), [
    ("{{ range(3) | join(', ') }}{{ '-'.join(['a', 'b']) }}", "0, 1, 2a-b"),
    ("{{ messages | map(attribute='role') | join('|') }}", "user|assistant"),
    ("{{ messages | join('|', attribute='role') }}", "user|assistant"),
    ("{{ [1, 2] | tojson(separators=(',', ':')) }}{{ 'a\nb' | indent(4) }}", "[1,2]a\n    b"),
    ("{{ '%d%% %(a)s' | replace('%', '') }}{{ '%s-%d%%' | format('a', 3) }}", "d (a)sa-3%"),
    ("{{ [1, 2.5] | sum }}{{ messages[1:] | length }}{{ 'abc'[::-1] }}", "3.51cba"),
    ("{{ ['b', 'a'] | sort | list }}{{ {'b': 1} | dictsort }}", "['a', 'b'][('b', 1)]"),
    ("{{ 'xaxbx'.strip('x') }}{{ 'a.b.c'.rsplit('.', 1) }}{{ 'abcb'.rfind('b') }}",
     "axb['a.b', 'c']3"),
    ("{% for a in [1, 2] | reverse %}{{ a }}{{ loop.length }}{% endfor %}{{ 'ab' | reverse }}",
     "2212ba"),
    ("{{ '<b>x</b>' | striptags }}{{ 'a  b'.split() }}{{ 'a,b'.split(',') }}",
     "x['a', 'b']['a', 'b']"),
    ("{% set x %}a{{ [1] }}{% endset %}{{ x }}{{ 'a b'.split() | last }}", "a[1]b"),
])
def test_what_templates_use_still_works(source: str, text: str) -> None:
    assert render(source) == text
