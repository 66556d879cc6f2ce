"""Where chat templates run: jinja2's sandbox with every resource bounded, and with provenance of text.

A template comes with a model, from a stranger. jinja2's sandbox keeps it away from Python; this module also bounds what
it can use. No signals or processes are needed, so it works in any thread:

- every value that an expression makes has a bounded size, checked before the operation where the operation itself
  would be the harm (repeating, padding, replacing, joining);
- the sizes of all values together are bounded, so memory is;
- every turn of a loop, call and filter looks at the thread's CPU clock. In between lies only one operation on bounded
  values, so time is bounded too.

Values that hold themselves can't be built: lists and dictionaries are immutable here, and a namespace, the one thing
that can be assigned to, counts as one character and prints as one word.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from datetime import datetime
from typing import Any, NoReturn

import jinja2
from jinja2 import nodes, pass_context
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.runtime import Context, LoopContext, Macro
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace
from jinja2.visitor import NodeTransformer

from .filters import (
    CHECK,
    CONCAT,
    STRING_METHODS,
    TICK,
    as_text,
    bounded_join,
    filters,
    guard,
    guard_percent,
    interleave,
)
from .meter import METER, Limits, Meter, size, too_large
from .provenance import adopt, is_foreign, join

__all__ = ["Sandbox"]


class Sandbox(ImmutableSandboxedEnvironment):
    """The environment of one chat template: what `transformers` gives to templates, bounded by `limits`."""

    intercepted_binops = frozenset({"+", "*", "**", "%"})

    def __init__(self, limits: Limits) -> None:
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            optimized=False,  # the optimizer would run filters while compiling, where no meter counts
            finalize=_finalize,
            extensions=["jinja2.ext.loopcontrols", _Generation],
        )
        self.limits = limits
        self.concat = self._concat  # type: ignore[method-assign]
        self.filters = filters()
        self.globals = {
            "range": self._range,
            "dict": lambda *args, **kwargs: dict(*args, **kwargs),
            "namespace": _Namespace,
            "raise_exception": _raise_exception,
            "strftime_now": _strftime_now,
        }

    def load(self, source: str) -> jinja2.Template:
        """Parse and compile a template, with its limits built in. Raises whatever jinja2 or Python does."""
        if len(source) > self.limits.source:
            raise SecurityError(f"the template is longer than {self.limits.source} characters")
        tree = self.parse(source)
        if sum(1 for _ in tree.find_all(nodes.Node)) > self.limits.nodes:
            raise SecurityError(f"the template has more than {self.limits.nodes} parts")
        if tree.find(nodes.EvalContextModifier) or tree.find(nodes.ScopedEvalContextModifier):
            raise SecurityError("the template switches escaping on, which chat templates have no use for")
        _Metering().visit(tree)
        tree.set_environment(self)
        return self.from_string(tree)

    def wrap_str_format(self, value: Any) -> None:
        """str.format gets no exception: it can pad to any width, and `is_safe_attribute` refuses it."""

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        if isinstance(obj, str) and attr not in STRING_METHODS:
            return False
        return super().is_safe_attribute(obj, attr, value)

    def call(self, context: Context, obj: Any, *args: Any, **kwargs: Any) -> Any:
        meter: Meter = context.parent[METER]
        meter.tick()
        receiver, name = getattr(obj, "__self__", None), getattr(obj, "__name__", "")
        if isinstance(receiver, str):
            guard(name, receiver, args, kwargs, self.limits)
            if name == "join":
                return meter.spend(bounded_join(interleave(receiver, *args), self.limits))
        result = super().call(context, obj, *args, **kwargs)
        if isinstance(result, Iterator):
            result = [meter.spend(item) for item in result]
        # Macros and stripping keep track of foreign text by themselves; a dictionary's methods only select.
        tracked = isinstance(obj, Macro | LoopContext) or isinstance(receiver, dict)
        tracked = tracked or (isinstance(receiver, str) and name in ("strip", "lstrip", "rstrip"))
        if not tracked:
            given = [value for key, value in kwargs.items() if not key.startswith("_")]  # the others are jinja2's own
            result = adopt(result) if is_foreign([receiver, *args, *given]) else result
        return meter.spend(result)

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        meter: Meter = context.parent[METER]
        if operator == "+" and isinstance(left, str) and isinstance(right, str):
            return meter.spend(join((left, right)))
        if operator == "*":
            for repeated, times in ((left, right), (right, left)):
                long = isinstance(times, int) and not isinstance(repeated, int | float)
                if long and times * size(repeated, self.limits) > self.limits.value:
                    raise too_large(self.limits)
        if operator == "**" and isinstance(right, int) and abs(right) > 64:
            raise SecurityError("the template raises a number to a power above 64")
        if operator == "%" and isinstance(left, str):
            guard_percent(left, self.limits)
        result = super().call_binop(context, operator, left, right)
        if operator in "*%" and is_foreign([left, right]):
            result = adopt(result)
        return meter.spend(result)

    def _concat(self, parts: Iterable[str]) -> str:
        """How jinja2 joins what a macro or a block wrote."""
        return bounded_join(parts, self.limits)

    def _range(self, *args: int) -> range:
        turns = range(*args)
        if len(turns) > self.limits.loop:
            raise SecurityError(f"the template loops over a range of more than {self.limits.loop}")
        return turns


@pass_context
def _finalize(context: Context, value: Any) -> str:
    """What jinja2 does with each value that a template writes."""
    meter: Meter = context.parent[METER]
    meter.spend(value)  # before its text is made
    return as_text(value)


class _Namespace(Namespace):
    """What templates assign to. Its text is one word, since it may hold itself; private names are refused."""

    def __init__(*args: Any, **kwargs: Any) -> None:  # a template may pass `self=`, as to jinja2's own
        self, *rest = args
        values = dict(*rest, **kwargs)
        for name in values:
            _refuse_private(name)
        Namespace.__init__(self, values)

    def __setitem__(self, name: str, value: Any) -> None:
        _refuse_private(name)
        super().__setitem__(name, value)

    def __repr__(self) -> str:
        return "namespace"


def _refuse_private(name: Any) -> None:
    if str(name).startswith("_"):
        raise SecurityError("a template can't store names that begin with an underscore")


class _Generation(Extension):
    """`{% generation %}` marks what the assistant wrote, for training; for rendering it is nothing."""

    tags = {"generation"}  # noqa: RUF012  jinja2 declares it so

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class _Metering(NodeTransformer):
    """Puts the meter into the syntax tree, where no hook of jinja2 reaches: loops, literals and `~`."""

    def visit_For(self, node: nodes.For) -> nodes.Node:
        return self._body(node)

    def visit_Macro(self, node: nodes.Macro) -> nodes.Node:
        return self._body(node)

    def visit_List(self, node: nodes.List) -> nodes.Node:
        return self._wrap(node)

    def visit_Dict(self, node: nodes.Dict) -> nodes.Node:
        return self._wrap(node)

    def visit_Tuple(self, node: nodes.Tuple) -> nodes.Node:
        return self._wrap(node) if node.ctx == "load" else node

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:
        self.generic_visit(node)
        return _filter(nodes.List(node.nodes, lineno=node.lineno), CONCAT)

    def _wrap(self, node: nodes.Expr) -> nodes.Node:
        self.generic_visit(node)
        return _filter(node, CHECK)

    def _body(self, node: nodes.For | nodes.Macro) -> nodes.Node:
        self.generic_visit(node)
        nothing = nodes.Const(None, lineno=node.lineno)
        node.body.insert(0, nodes.ExprStmt(_filter(nothing, TICK), lineno=node.lineno))
        return node


def _filter(node: nodes.Expr, name: str) -> nodes.Filter:
    return nodes.Filter(node, name, [], [], None, None, lineno=node.lineno)


def _strftime_now(pattern: str) -> str:
    if re.search(r"\d{2}", pattern):
        raise SecurityError("the template asks for a date with a field width")
    return datetime.now().strftime(pattern)


def _raise_exception(message: Any = "") -> NoReturn:
    raise jinja2.TemplateError(str(message))
