"""Strategies of Hypothesis that damage what is right: bytes, lines of text, trees of values."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Sequence
from typing import Any

import yaml
from hypothesis import strategies as st

# Pieces that formats, terminals, shells and parsers stumble over.
WORDS = (
    *("", "0", "-1", "1e400", "nan", "inf", "null", "none", "true", "~", "x", "ä", "\x1b[2J"),
    *("[bold]", "../../x", "/", "a b", "=1+1", "%s%n", "{}", "9" * 400, "x" * 300, "\u2028"),
    *("!!python/object/apply:os.system [exit]", "&a [*a]", "<<: *b", "- - -", "!x y", "0x10"),
)
CHUNKS = (
    *(b"\0", b"\n", b"\r\n", b"\xff\xfe", b"\xef\xbb\xbf", b"\x80", b"PK\x03\x04", b"\x1f\x8b"),
    *(b"]", b"}", b"[[[[", b'"', b"\\ud800", b"\t", b"\0" * 64, b"\xff" * 8),
)
VALUES = (
    *(None, True, False, 0, -1, 2**31, 2**64, -(10**30), 0.5, -0.0, 1e308),
    *(float("nan"), float("inf"), "", "x", "nan", "a\nb", "\x1b]0;x\x07", "\ud800", "é" * 300),
    *([], {}, [[]], [None], {"": None}, {"a": {"b": []}}, [1, "x", None], list(range(50))),
)


@st.composite
def damaged_bytes(draw: st.DrawFn, content: bytes, times: int = 3) -> bytes:
    """Cut, changed, doubled, or with pieces of something else in it."""
    for _ in range(draw(st.integers(1, times))):
        start = draw(st.integers(0, len(content)))
        end = min(len(content), start + draw(st.sampled_from([0, 1, 2, 7, 64, 10**6])))
        match draw(st.integers(0, 4)):
            case 0:
                content = content[:start]
            case 1:
                content = content[:start] + content[end:]
            case 2:
                content = content[:start] + draw(st.sampled_from(CHUNKS)) + content[end:]
            case 3:
                content = content[:end] + content[start:end] * 3 + content[end:]
            case 4 if start < len(content):
                flipped = content[start] ^ (1 << draw(st.integers(0, 7)))
                content = content[:start] + bytes([flipped]) + content[start + 1 :]
    return content


@st.composite
def damaged_lines(draw: st.DrawFn, content: bytes) -> bytes:
    """Lines that are gone, doubled, moved or joined, and words that are others."""
    lines = content.decode().splitlines(keepends=True)
    for _ in range(draw(st.integers(1, 3))):
        if not lines:
            break
        at = draw(st.integers(0, len(lines) - 1))
        match draw(st.integers(0, 4)):
            case 0:
                del lines[at]
            case 1:
                lines.insert(draw(st.integers(0, len(lines))), lines[at])
            case 2:
                lines[at] = lines[at].rstrip("\n")
            case _:
                words = lines[at].split(" ")
                words[draw(st.integers(0, len(words) - 1))] = draw(st.sampled_from(WORDS))
                lines[at] = " ".join(words) + "\n"
    return "".join(lines).encode("utf-8", "surrogateescape")


def _places(tree: Any) -> list[tuple[Any, ...]]:
    """The way to every part of a tree, but the tree itself."""
    keys: Sequence[Any] = list(tree) if isinstance(tree, dict) else range(len(tree))
    found: list[tuple[Any, ...]] = []
    for key in keys:
        found.append((key,))
        if isinstance(tree[key], dict | list):
            found += [(key, *rest) for rest in _places(tree[key])]
    return found


@st.composite
def damaged_tree(draw: st.DrawFn, tree: Any, values: Sequence[Any] = VALUES) -> Any:
    """Some of its parts gone, renamed, wrapped, or of another type."""
    tree = copy.deepcopy(tree)
    for _ in range(draw(st.integers(1, 3))):
        places = _places(tree)
        if not places:
            break
        *way, key = places[draw(st.integers(0, len(places) - 1))]
        holder = tree
        for step in way:
            holder = holder[step]
        match draw(st.integers(0, 5)):
            case 0:
                del holder[key]
            case 1:
                holder[key] = [holder[key]]
            case 2 if isinstance(holder, dict):
                holder[draw(st.sampled_from(["", "x", "a.b[0]", "\n"]))] = holder.pop(key)
            case _:
                holder[key] = copy.deepcopy(draw(st.sampled_from(values)))
    return tree


def _json(tree: Any) -> bytes:
    return json.dumps(tree).encode()


def _yaml(tree: Any) -> bytes:
    return yaml.safe_dump(tree, allow_unicode=False).encode("utf-8", "surrogatepass")


def damaged_json(content: bytes) -> st.SearchStrategy[bytes]:
    return damaged_document(content, json.loads, _json)


def damaged_yaml(content: bytes) -> st.SearchStrategy[bytes]:
    return damaged_document(content, yaml.safe_load, _yaml)


def damaged_document(
    content: bytes, read: Callable[[bytes], Any], write: Callable[[Any], bytes]
) -> st.SearchStrategy[bytes]:
    """By its values most often, else by its text."""
    by_value = damaged_tree(read(content)).map(write)
    return st.one_of(by_value, by_value, by_value, damaged_lines(content), damaged_bytes(content))


def damaged_text(content: bytes) -> st.SearchStrategy[bytes]:
    return st.one_of(damaged_lines(content), damaged_lines(content), damaged_bytes(content))


def damaged_jsonl(content: bytes) -> st.SearchStrategy[bytes]:
    """A file of JSON lines: the values of one of them, or its text."""
    lines = content.splitlines(keepends=True)

    def with_line(number: int) -> st.SearchStrategy[bytes]:
        def joined(line: bytes) -> bytes:
            return b"".join([*lines[:number], line + b"\n", *lines[number + 1 :]])

        return damaged_tree(json.loads(lines[number])).map(_json).map(joined)

    one_line = st.integers(0, len(lines) - 1).flatmap(with_line)
    return st.one_of(one_line, one_line, damaged_lines(content), damaged_bytes(content))
