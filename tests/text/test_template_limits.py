"""Hostile chat templates end quickly, use little memory, and reach nothing outside."""

from __future__ import annotations

import threading
import time
import tracemalloc

import pytest

from trifolium.errors import TemplateError
from trifolium.text import ChatTemplate
from trifolium.text.meter import Limits

LIMITS = Limits(seconds=0.3)
MESSAGES = [{"role": "user", "content": "a" * 1000}]
DOUBLE = "{%% set ns = namespace(x='ab') %%}{%% for i in range(99) %%}%s{%% endfor %%}{{ ns.x }}"
LOOP = "{% for i in range(99999) %}"

HOSTILE = {
    "long range": "{% for i in range(10**9) %}x{% endfor %}",
    "nested loops": LOOP * 3 + "{% endfor %}" * 3,
    "nested loops inside a macro": "{% macro f() %}" + LOOP * 2 + "{% endfor %}" * 2 + "{% endmacro %}{{ f() }}",
    "long output": LOOP + "x" * 1000 + "{% endfor %}",
    "long output in a block": "{% set x %}" + LOOP + "x" * 1000 + "{% endfor %}{% endset %}",
    "long output in a filter": "{% filter upper %}" + LOOP + "x" * 1000 + "{% endfor %}{% endfilter %}",
    "long output of a caller": "{% macro f() %}{{ caller() }}{% endmacro %}{% call f() %}"
    + LOOP
    + "x" * 1000
    + "{% endfor %}{% endcall %}",
    "doubling with ~": DOUBLE % "{% set ns.x = ns.x ~ ns.x %}",
    "doubling with +": DOUBLE % "{% set ns.x = ns.x + ns.x %}",
    "doubling with *": DOUBLE % "{% set ns.x = ns.x * 2 %}",
    "doubling with %": DOUBLE % "{% set ns.x = '%s%s' % (ns.x, ns.x) %}",
    "doubling with format": DOUBLE % "{% set ns.x = '%s%s' | format(ns.x, ns.x) %}",
    "doubling with join": DOUBLE % "{% set ns.x = [ns.x, ns.x] | join %}",
    "doubling with a block": DOUBLE % "{% set ns.x %}{{ ns.x }}{{ ns.x }}{% endset %}",
    "doubling lists": DOUBLE % "{% set ns.x = [ns.x, ns.x] %}",
    "doubling tuples": DOUBLE % "{% set ns.x = (ns.x, ns.x) %}",
    "doubling dictionaries": DOUBLE % "{% set ns.x = {1: ns.x, 2: ns.x} %}",
    "doubling calls": DOUBLE % "{% set ns.x = dict(a=ns.x, b=ns.x) %}",
    "squaring": "{% set ns = namespace(x=7) %}{% for i in range(99) %}{% set ns.x = ns.x * ns.x %}{% endfor %}",
    "power": "{{ 10 ** 10 ** 10 ** 10 }}",
    "repeating text": "{{ 'a' * 10**9 }}",
    "repeating lists": "{{ 10**9 * [1] }}",
    "ljust": "{{ 'a'.ljust(10**9) }}",
    "zfill": "{{ 'a'.zfill(10**9) }}",
    "center": "{{ 'a' | center(10**9) }}",
    "indent": "{{ ('\n' * 10**6) | indent(10**6) }}",
    "tojson": "{{ messages | tojson(indent=10**9) }}",
    "batch": "{{ [1] | batch(10**9, 0) | list }}",
    "percent width": "{{ '%1000000000d' % 1 }}",
    "percent precision": "{{ '%.1000000000f' % 1 }}",
    "percent star": "{{ '%*d' % (10**9, 1) }}",
    "format": "{{ '{:1000000000}'.format(1) }}",
    "format item": "{{ ('{:1000000000}'['format'])(1) }}",
    "date width": "{{ strftime_now('%1000000000Y') }}",
    "replace": "{% set a = 'a' * 10**6 %}{{ a.replace('a', a) }}",
    "replace filter": "{% set a = 'a' * 10**6 %}{{ a | replace('', a) }}",
    "join": "{% set a = 'a' * 10**6 %}{{ a.join(a) }}",
    "join filter": "{% set a = 'a' * 10**6 %}{{ a | join(a) }}",
    "expandtabs": "{{ '\t'.expandtabs(10**9) }}",
    "sum of lists": "{{ ([[1]] * 100000) | sum(start=[]) }}",
    "endless recursion": "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
    "branching recursion": "{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(60) }}",
    "recursive loop": "{% for i in range(9) recursive %}{{ loop(range(9)) }}{% endfor %}",
    "recursive block": "{% block a %}{{ self.a() }}{% endblock %}",
    "many searches": "{% set a = 'a' * 5 * 10**6 %}" + LOOP + "{{ 'aab' in a }}{% endfor %}",
    "many filters": LOOP + "{{ range(99999) | map('string') | list | length }}{% endfor %}",
    "itself in itself": "{% set ns = namespace() %}{% set ns.a = [ns] %}{{ ns.a | tojson }}",
    "deep nesting": "{{ " + "(" * 20_000 + "1" + ")" * 20_000 + " }}",
    "long sums": "{{ " + "+".join("a" * 7_000) + " }}",
    "deep loops": "{% for i in [1] %}" * 60 + "{% endfor %}" * 60,
    "long source": "x" * 10**6,
    "many parts": "{{ a }}" * 18_000,
    "class": "{{ ''.__class__.__mro__ }}",
    "class by map": "{{ [''] | map(attribute='__class__') | map('string') | first | upper ~ 1 / 0 }}",
    "subclasses": "{{ messages.__class__.__base__.__subclasses__() }}",
    "globals": "{{ raise_exception.__globals__['x'] }}",
    "self of a function": "{{ range.__self__.limits }}",
    "context": "{{ self._TemplateReference__context.parent }}",
    "namespace internals": "{{ namespace(a=1)._Namespace__attrs.a }}",
    "private name": "{% set ns = namespace(__class__=1) %}{{ ns }}",
    "append": "{{ messages.append(1) }}",
    "update": "{{ messages[0].update(a=1) }}",
    "include": "{% include '/etc/passwd' %}",
    "import": "{% import '/etc/passwd' as x %}",
    "escaping": "{% autoescape true %}{{ messages[0].content }}{% endautoescape %}",
    "lipsum": "{{ lipsum(n=10**6) }}",
    "random": "{{ [1] | random }}",
    "syntax": "{% for %}",
    "unknown tag": "{% evil %}",
    "division by zero": "{{ 1 / 0 }}",
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_templates_end_quickly_with_a_clear_error(name: str) -> None:
    began = time.thread_time()
    with pytest.raises(TemplateError) as caught:
        ChatTemplate(HOSTILE[name], limits=LIMITS).render(MESSAGES)
    assert time.thread_time() - began < 3.0
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 300


@pytest.mark.parametrize(
    "name", ["doubling lists", "doubling with ~", "repeating text", "long output in a block", "join"]
)
def test_hostile_templates_use_little_memory(name: str) -> None:
    tracemalloc.start()
    try:
        with pytest.raises(TemplateError):
            ChatTemplate(HOSTILE[name], limits=Limits(seconds=1.0, value=1_000_000)).render(MESSAGES)
        assert tracemalloc.get_traced_memory()[1] < 100_000_000
    finally:
        tracemalloc.stop()


def test_harmless_escapes_print_nothing() -> None:
    for source in ("{{ raise_exception.__globals__ }}", "{{ ''|attr('__class__') }}", "{{ messages.__class__ }}"):
        assert ChatTemplate(source).render(MESSAGES) == ""


def test_limits_hold_in_any_thread() -> None:
    errors: list[Exception] = []

    def work() -> None:
        try:
            ChatTemplate(HOSTILE["nested loops"], limits=LIMITS).render(MESSAGES)
        except TemplateError as error:
            errors.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join(timeout=30)
    assert len(errors) == 1
    assert "longer than 0.3 seconds" in str(errors[0])


def test_long_chats_are_no_attack() -> None:
    """A conversation of two million characters in a thousand messages renders within the default limits."""
    source = (
        "{% set ns = namespace(last=0) %}"
        "{% for m in messages %}{% if m.role == 'user' %}{% set ns.last = loop.index0 %}{% endif %}{% endfor %}"
        "{% for m in messages %}{% set content = m.content | trim %}"
        "{{ '<|im_start|>' + m.role + '\n' + content.split('</think>')[-1].lstrip('\n') + '<|im_end|>\n' }}{% endfor %}"
    )
    messages = [{"role": ("user", "assistant")[n % 2], "content": "word " * 400} for n in range(1000)]
    assert len(ChatTemplate(source).render(messages)) > 1_900_000
