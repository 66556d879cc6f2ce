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

import json
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, NoReturn

import jinja2
from jinja2 import nodes, pass_context
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.runtime import Context, LoopContext, Macro
from jinja2.sandbox import ImmutableSandboxedEnvironment, SecurityError
from jinja2.utils import Namespace
from jinja2.visitor import NodeTransformer

from .provenance import adopt, is_foreign, join

__all__ = ["METER", "Limits", "Meter", "Sandbox"]

METER = "render meter"  # the context's key for the Meter; no template can name it, since names hold no spaces


@dataclass(frozen=True)
class Limits:
    """What one template may use. Sizes are in characters; an element of a container counts as eight."""

    source: int = 128 * 1024
    nodes: int = 16_000
    value: int = 8_000_000
    total: int = 128_000_000
    width: int = 10_000
    loop: int = 100_000
    seconds: float = 2.0


class Meter:
    """Counts what one rendering uses; raises SecurityError when that is too much."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self._left = limits.total
        self._deadline = time.thread_time() + limits.seconds

    def tick(self) -> None:
        """One step of a loop, or one call."""
        if time.thread_time() > self._deadline:
            raise SecurityError(f"the template computes for longer than {self.limits.seconds:g} seconds")

    def spend(self, value: Any) -> Any:
        """Account for a new value, and give it back."""
        self._left -= size(value, self.limits.value)
        if self._left < 0:
            raise SecurityError(f"the template makes more than {self.limits.total} characters of values")
        self.tick()
        return value


def size(value: Any, limit: int) -> int:
    """The size of a value, with all that it holds, as often as it holds it; raises SecurityError above `limit`."""
    total = 0
    stack = [value]
    while stack:
        item = stack.pop()
        if isinstance(item, str | bytes):
            total += len(item) + 1
        elif isinstance(item, bool) or item is None:
            total += 1
        elif isinstance(item, int):
            if item.bit_length() > 1024:
                raise SecurityError("the template makes a number of more than 1024 bits")
            total += 1
        elif isinstance(item, Mapping):
            total += 16 * len(item) + 1
            stack.extend(item.keys())
            stack.extend(item.values())
        elif isinstance(item, list | tuple | set | frozenset):
            total += 8 * len(item) + 1
            stack.extend(item)
        else:
            total += 1
        if total + len(stack) > limit:
            raise SecurityError(f"the template makes a value of more than {limit} characters")
    return total


class Sandbox(ImmutableSandboxedEnvironment):
    """The environment of one chat template: what `transformers` gives to templates, bounded by `limits`."""

    intercepted_binops = frozenset({"+", "*", "**", "%"})

    def __init__(self, limits: Limits) -> None:
        # The optimizer would run filters while compiling, where no meter counts.
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            optimized=False,
            finalize=_finalize,
            extensions=["jinja2.ext.loopcontrols", _Generation],
        )
        self.limits = limits
        self.concat = self._bounded_join  # type: ignore[assignment]
        self.filters = {name: _metered(name, self.filters[name]) for name in _FILTERS}
        self.filters["tojson"] = _metered("tojson", _tojson)
        self.filters["join"] = _metered("join", _join)
        self.filters["trim"] = _metered("trim", _trim)
        self.filters["string"] = self.filters["safe"] = _metered("string", _text)
        self.filters |= {_TICK: _tick, _CHECK: _check, _CONCAT: _concat}
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
        _Metering().visit(tree)
        tree.set_environment(self)
        return self.from_string(tree)

    def wrap_str_format(self, value: Any) -> None:
        """str.format gets no exception: it can pad to any width, and `is_safe_attribute` refuses it."""

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        if isinstance(obj, str) and attr not in _STRING_METHODS:
            return False
        return super().is_safe_attribute(obj, attr, value)

    def call(self, context: Context, obj: Any, *args: Any, **kwargs: Any) -> Any:  # type: ignore[override]
        meter: Meter = context.parent[METER]
        meter.tick()
        receiver = getattr(obj, "__self__", None)
        if isinstance(receiver, str):
            _guard(getattr(obj, "__name__", ""), receiver, args, kwargs, self.limits)
            if getattr(obj, "__name__", "") == "join" and args:
                return meter.spend(join(_alternate(receiver, args[0])))
        result = super().call(context, obj, *args, **kwargs)
        if isinstance(result, Iterator) and not isinstance(result, LoopContext):
            result = list(result)
        if not isinstance(obj, Macro | LoopContext) and not isinstance(receiver, Mapping):
            # Macros keep track by themselves, and a mapping's methods only select.
            given = [value for name, value in kwargs.items() if not name.startswith("_")]
            if not isinstance(result, Namespace) and is_foreign([receiver, *args, *given]):
                result = _keep_strip(obj, receiver, result)
        return meter.spend(result)

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        meter: Meter = context.parent[METER]
        limit = self.limits.value
        if operator == "+" and isinstance(left, str) and isinstance(right, str):
            return meter.spend(join((left, right)))
        if operator == "*":
            for repeated, times in ((left, right), (right, left)):
                if (
                    isinstance(times, int)
                    and not isinstance(repeated, int | float)
                    and times * size(repeated, limit) > limit
                ):
                    raise SecurityError(f"the template makes a value of more than {limit} characters")
        if operator == "**" and isinstance(right, int) and abs(right) > 64:
            raise SecurityError("the template raises a number to a power above 64")
        if operator == "%" and isinstance(left, str):
            _guard_percent(left, self.limits)
        result = super().call_binop(context, operator, left, right)
        if operator in "*%" and is_foreign([left, right]):
            result = adopt(result)
        return meter.spend(result)

    def _bounded_join(self, parts: Iterable[str]) -> str:
        parts = list(parts)
        if sum(map(len, parts)) > self.limits.value:
            raise SecurityError(f"the template makes a value of more than {self.limits.value} characters")
        return join(parts)

    def _range(self, *args: int) -> range:
        turns = range(*args)
        if len(turns) > self.limits.loop:
            raise SecurityError(f"the template loops over a range of more than {self.limits.loop}")
        return turns


class _Namespace(Namespace):
    """What templates assign to. Its text is one word, since it may hold itself; private names are refused."""

    def __init__(*args: Any, **kwargs: Any) -> None:  # noqa: N805  a template may pass `self=`
        self, *rest = args
        values = dict(*rest, **kwargs)
        if any(str(name).startswith("_") for name in values):
            raise SecurityError("a template can't store names that begin with an underscore")
        Namespace.__init__(self, values)

    def __setitem__(self, name: str, value: Any) -> None:
        if name.startswith("_"):
            raise SecurityError("a template can't store names that begin with an underscore")
        super().__setitem__(name, value)

    def __repr__(self) -> str:
        return "namespace"


class _Generation(Extension):
    """`{% generation %}` marks what the assistant wrote, for training; for rendering it is nothing."""

    tags = {"generation"}  # noqa: RUF012  jinja2 declares it so

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


# Filters that no template can name, since names hold no spaces.
_TICK, _CHECK, _CONCAT = "tick now", "check value", "concat parts"


class _Metering(NodeTransformer):
    """Puts the meter into the syntax tree, where no hook of jinja2 reaches: loops, literals and `~`."""

    def visit_For(self, node: nodes.For) -> nodes.Node:
        return self._body(node)

    def visit_Macro(self, node: nodes.Macro) -> nodes.Node:
        return self._body(node)

    def visit_List(self, node: nodes.List) -> nodes.Node:
        return self._wrap(node, _CHECK)

    def visit_Dict(self, node: nodes.Dict) -> nodes.Node:
        return self._wrap(node, _CHECK)

    def visit_Tuple(self, node: nodes.Tuple) -> nodes.Node:
        return self._wrap(node, _CHECK) if node.ctx == "load" else node

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:
        self.generic_visit(node)
        return _filter(nodes.List(node.nodes, lineno=node.lineno), _CONCAT)

    def _wrap(self, node: nodes.Expr, name: str) -> nodes.Node:
        self.generic_visit(node)
        return _filter(node, name)

    def _body(self, node: nodes.For | nodes.Macro) -> nodes.Node:
        self.generic_visit(node)
        node.body.insert(0, nodes.ExprStmt(_filter(nodes.Const(None, lineno=node.lineno), _TICK), lineno=node.lineno))
        return node


def _filter(node: nodes.Expr, name: str) -> nodes.Filter:
    return nodes.Filter(node, name, [], [], None, None, lineno=node.lineno)


@pass_context
def _tick(context: Context, value: Any) -> Any:
    context.parent[METER].tick()
    return value


@pass_context
def _check(context: Context, value: Any) -> Any:
    return context.parent[METER].spend(value)


@pass_context
def _concat(context: Context, parts: list[Any]) -> str:
    return str(context.parent[METER].spend(join(_text(part) for part in parts)))


@pass_context
def _finalize(context: Context, value: Any) -> str:
    meter: Meter = context.parent[METER]
    size(value, meter.limits.value)  # before its text is made
    return str(meter.spend(_text(value)))


def _text(value: Any) -> str:
    """What `{{ value }}` shows; foreign as a whole if it is a container with foreign text in it."""
    if isinstance(value, str):
        return value
    return str(adopt(str(value))) if is_foreign(value) else str(value)


# What chat templates use of jinja2's filters. Left out: those that make markup, take time per character or pick at random.
_FILTERS = (
    "abs attr batch capitalize count d default dictsort first float format groupby indent int items last length "
    "list lower map max min reject rejectattr replace reverse round select selectattr slice sort sum title "
    "truncate unique upper"
).split()
# These hand on what they were given, or parts of it; given a container, they make no new text.
_SELECTING = frozenset(
    "attr batch d default dictsort first groupby items last list map max min reject rejectattr reverse select "
    "selectattr slice sort sum unique".split()
)
# These keep track of foreign text by themselves.
_TRACKING = frozenset("d default join string trim".split())
_STRING_METHODS = frozenset(
    "capitalize casefold center count endswith find index isalnum isalpha isascii isdecimal isdigit isidentifier islower "
    "isnumeric isprintable isspace istitle isupper join ljust lower lstrip partition removeprefix removesuffix replace "
    "rfind rindex rjust rpartition rsplit rstrip split splitlines startswith strip swapcase title upper zfill".split()
)


def _metered(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """A filter that counts, checks its arguments, and keeps track of foreign text."""
    needs = getattr(function, "jinja_pass_arg", None)

    @pass_context
    def run(context: Context, value: Any, *args: Any, **kwargs: Any) -> Any:
        meter: Meter = context.parent[METER]
        meter.tick()
        _guard(name, value, args, kwargs, meter.limits)
        passed = {
            "context": (context,),
            "eval_context": (context.eval_ctx,),
            "environment": (context.environment,),
        }.get(needs.name if needs is not None else "", ())
        result = function(*passed, value, *args, **kwargs)
        if isinstance(result, Iterator):
            result = list(_ticking(result, meter))
        if not (name in _SELECTING and not isinstance(value, str)) and is_foreign([value, *args, *kwargs.values()]):
            result = result if name in _TRACKING else adopt(result)
        return meter.spend(result)

    return run


def _ticking(items: Iterator[Any], meter: Meter) -> Iterator[Any]:
    for item in items:
        meter.spend(item)
        yield item


def _guard(name: str, value: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], limits: Limits) -> None:
    """Refuse an operation whose result would be far larger than what goes in."""
    given = [*args, *kwargs.values()]
    if name in ("indent", "tojson"):
        numbers = [item for item in given if isinstance(item, int)]
        widths = [len(item) for item in given if isinstance(item, str)]
        if max([*numbers, *widths], default=0) > 32:
            raise SecurityError(f"the template asks '{name}' for more than 32 columns")
    elif name in ("center", "ljust", "rjust", "zfill", "truncate", "batch", "slice", "round"):
        if any(isinstance(item, int) and abs(item) > limits.width for item in given):
            raise SecurityError(f"the template asks '{name}' for more than {limits.width}")
    elif name == "replace" and isinstance(value, str) and len(given) >= 2:
        old, new = str(given[0]), str(given[1])
        if len(value) + value.count(old) * len(new) > limits.value:
            raise SecurityError(f"the template makes a value of more than {limits.value} characters")
    elif name == "join":
        separator = value if isinstance(value, str) and args and not isinstance(args[0], str) else (given or [""])[0]
        items = args[0] if separator is value else value
        count = len(items) if hasattr(items, "__len__") else limits.loop
        if size(items, limits.value) + len(str(separator)) * count > limits.value:
            raise SecurityError(f"the template makes a value of more than {limits.value} characters")
    elif name == "sum" and any(not isinstance(item, int | float | str) for item in given):
        raise SecurityError("in a template, 'sum' adds numbers only")
    elif name == "format":
        _guard_percent(str(value), limits)
    if name in ("string", "tojson", "format", "upper", "lower", "title"):
        size(value, limits.value)


def _guard_percent(pattern: str, limits: Limits) -> None:
    for width in re.findall(r"%[^a-zA-Z%]*?(\*|\d+)", pattern):
        if width == "*" or int(width[:9]) > limits.width:
            raise SecurityError(f"the template formats with a width of more than {limits.width}")


def _keep_strip(method: Any, receiver: Any, result: Any) -> Any:
    """Stripping and cutting keep track by themselves; anything else is foreign as a whole."""
    own = isinstance(receiver, str) and getattr(method, "__name__", "") in ("strip", "lstrip", "rstrip")
    return result if own else adopt(result)


def _alternate(separator: str, items: Iterable[Any]) -> Iterator[str]:
    for place, item in enumerate(items):
        if place:
            yield separator
        yield item


@jinja2.pass_environment
def _join(environment: jinja2.Environment, value: Iterable[Any], d: str = "", attribute: Any = None) -> str:
    if attribute is not None:
        value = [
            environment.getattr(item, attribute) if isinstance(attribute, str) else item[attribute] for item in value
        ]
    return join(_alternate(_text(d), (_text(item) for item in value)))


def _trim(value: Any, chars: str | None = None) -> str:
    return _text(value).strip(chars)


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _strftime_now(pattern: str) -> str:
    if re.search(r"\d{2}", pattern):
        raise SecurityError("the template asks for a date with a field width")
    return datetime.now().strftime(pattern)


def _raise_exception(message: Any = "") -> NoReturn:
    raise jinja2.TemplateError(str(message))
