"""YAML of unknown origin: plain data of bounded size, or an error in one line."""

from __future__ import annotations

import re
from typing import Any

import yaml

from levelhead.documents import DocumentError
from levelhead.message import Message, Phrase

MOST_NODES = 20_000
"""Values in a document, each counted as often as an alias brings it in."""

_NOT_YAML = Message("not valid YAML: {why}", "不是合法的 YAML：{why}")
_STUMBLES = (ValueError, TypeError, LookupError, AttributeError, ArithmeticError)


def load_yaml(text: str) -> Any:
    """Return a YAML document as plain data.

    ``1e-6`` is a number, a key that is given twice is an error, keys are plain values, and aliases may not make the
    document larger than :data:`MOST_NODES`.

    Raises:
        DocumentError: It is none, or holds what no plain document needs.
    """
    loader = None
    try:
        loader = _Loader(text)
        node = loader.get_single_node()
        if node is None:
            return None
        _bounded(node)
        return loader.construct_document(node)
    except _STUMBLES as error:
        raise DocumentError(_NOT_YAML(why=error)) from None
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        problem = getattr(error, "problem", None) or str(error).partition("\n")[0]
        raise DocumentError(_NOT_YAML(why=problem), mark.line + 1 if mark else None) from None
    except RecursionError:
        raise DocumentError(_NOT_YAML(why=Phrase("nested too deeply", "嵌套太深"))) from None
    finally:
        if loader is not None:
            loader.dispose()


class _Loader(yaml.SafeLoader):
    """YAML 1.1 reads ``1e-6`` as text and a key given twice in silence; this loader does neither."""

    nodes = 0

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        """Read one node; what is too large is refused before all of it is read."""
        self.nodes += 1
        if self.nodes > MOST_NODES:
            raise _too_many(self.get_mark())
        return super().compose_node(parent, index)

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
        """Build one value; whatever its tag's constructor stumbles over is an error of the document."""
        try:
            return super().construct_object(node, deep)
        except _STUMBLES as error:
            why = f" ({error})" if type(error) is ValueError else ""
            problem = f"{node.tag.rpartition(':')[2]!r} cannot be made of this value{why}"
            raise yaml.MarkedYAMLError(problem=problem, problem_mark=node.start_mark) from None


def _float(loader: yaml.SafeLoader, node: yaml.ScalarNode) -> float:
    return float(str(loader.construct_scalar(node)))


def _mapping(loader: yaml.SafeLoader, node: yaml.MappingNode) -> dict[Any, Any]:
    seen: set[str] = set()
    for key, _ in node.value:
        if not isinstance(key, yaml.ScalarNode):
            raise yaml.MarkedYAMLError(problem="a list or a mapping cannot be a key", problem_mark=key.start_mark)
        if key.value in seen:
            raise yaml.MarkedYAMLError(problem=f"key {key.value!r} is given twice", problem_mark=key.start_mark)
        seen.add(key.value)
    loader.flatten_mapping(node)
    return dict(loader.construct_pairs(node, deep=True))


_Loader.add_implicit_resolver(
    "!exponent",
    re.compile(r"^[-+]?[0-9]+(\.[0-9]*)?[eE][-+]?[0-9]+$"),
    list("-+0123456789"),
)
_Loader.add_constructor("!exponent", _float)
_Loader.add_constructor(yaml.resolver.BaseResolver.DEFAULT_MAPPING_TAG, _mapping)


def _too_many(mark: yaml.Mark) -> yaml.MarkedYAMLError:
    return yaml.MarkedYAMLError(problem=f"more than {MOST_NODES} values, aliases counted", problem_mark=mark)


def _bounded(root: yaml.Node) -> None:
    """Refuse a document that holds itself, or that aliases blow up; each node is looked at once."""
    sizes: dict[int, int] = {}
    opened: set[int] = set()

    def size(node: yaml.Node) -> int:
        if id(node) in sizes:
            return sizes[id(node)]
        if id(node) in opened:
            raise yaml.MarkedYAMLError(problem="a value that holds itself", problem_mark=node.start_mark)
        opened.add(id(node))
        inner: list[yaml.Node] = []
        if isinstance(node, yaml.SequenceNode):
            inner = node.value
        elif isinstance(node, yaml.MappingNode):
            inner = [part for pair in node.value for part in pair]
        sizes[id(node)] = total = 1 + sum(map(size, inner))
        if total > MOST_NODES:
            raise _too_many(node.start_mark)
        return total

    size(root)
