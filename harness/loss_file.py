"""A user's own loss file with the files that it imports from beside it: its source, and a copy.

The copy lies with the study that searched the loss. It is there to be compared with, and run only
where a user names it: a run folder may be somebody else's, and runs no code.
"""

from __future__ import annotations

import ast
import difflib
import hashlib
import os
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import fields
from functools import cache
from importlib.metadata import PackageNotFoundError, packages_distributions, requires
from pathlib import Path
from typing import TypeGuard

from harness.errors import HarnessError
from harness.losses.method import Method
from harness.old_import_names import OLD_NAMES, is_own_module
from harness.records.layout import SOURCE, VERSION
from harness.system.files import make_folder, replacing

# What people call the parts of a method: the arguments of Method, and other words for them.
PARTS = (
    *(field.name for field in fields(Method)),
    *("head", "hook", "miner", "mining_func", "reducer", "params", "search_space", "methods"),
)

MOST_LINES = 12  # of what was changed, in a message

# Name, as `helpers/norms.py` -> content; the loss file itself is the first.
Sources = dict[str, bytes]


def is_file(loss: str) -> bool:
    """Whether a loss is given as a file, not by name."""
    return loss.endswith(".py")


def file_here(loss: str) -> str:
    """The file in this folder that a name may stand for: my_loss.py for my_loss@1a2b3c4d."""
    file = f"{loss.partition(VERSION)[0]}.py"
    return "" if is_file(loss) or not Path(file).is_file() else file


def absolute(loss: str) -> str:
    """What is found from any folder; a name stays one."""
    return str(Path(os.path.expanduser(loss)).absolute()) if is_file(loss) else loss


def sources_of(path: Path) -> Sources:
    """A loss file and all that it imports from beside it, and that from there."""
    found: Sources = {path.name: path.read_bytes()}
    waiting = [path.name]
    while waiting:
        for module in _imported(found[waiting.pop()]):
            for file in _files_of(path.parent, module):
                name = file.relative_to(path.parent).as_posix()
                if name not in found:
                    found[name] = file.read_bytes()
                    waiting.append(name)
    return found


def _imported(source: bytes) -> Iterator[str]:
    """First parts of the names of modules that are imported anywhere in it."""
    with suppress(SyntaxError, ValueError):  # who imports it will tell
        for node in ast.walk(ast.parse(source)):
            if isinstance(node, ast.Import):
                yield from (alias.name.partition(".")[0] for alias in node.names)
            elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                yield node.module.partition(".")[0]


def _files_of(folder: Path, module: str) -> list[Path]:
    # A loss file in a checkout of ours has our folders beside it, which are not its sources.
    if module == "harness" or (module in OLD_NAMES and not is_own_module(folder, module)):
        return []
    if (folder / module / "__init__.py").is_file():
        return sorted((folder / module).rglob("*.py"))
    file = folder / f"{module}.py"
    return [file] if file.is_file() else []


def unread_names(path: Path) -> list[str]:
    """Names in a loss file that look as if the harness should read them, and does not.

    Such a name is nearly that of a part of a method, and nothing in the file uses it.
    """
    module = ast.parse(path.read_bytes())
    defined = [name for statement in module.body for name in _defined_by(statement)]
    used = {node.id for node in ast.walk(module) if _is_read(node)}
    read = "METHODS" if "METHODS" in defined else "SPACE"
    return [
        name
        for name in defined
        if name not in used
        and name != read
        and difflib.get_close_matches(name.strip("_").lower(), PARTS, n=1, cutoff=0.8)
    ]


def _defined_by(node: ast.stmt) -> list[str]:
    """Names of functions and values that a statement of a module defines; not of classes."""
    if isinstance(node, ast.FunctionDef):
        return [node.name]
    targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
    return [target.id for target in targets if isinstance(target, ast.Name)]


def _is_read(node: ast.AST) -> TypeGuard[ast.Name]:
    return isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)


def modules_in(sources: Mapping[str, bytes]) -> list[str]:
    """The modules of the files beside a loss file, as they are imported."""
    helpers = list(sources)[1:]
    dotted = (name.removesuffix(".py").replace("/", ".") for name in helpers)
    return [name.removesuffix(".__init__") for name in dotted]


def check_helpers(path: Path, helpers: Iterable[str]) -> None:
    """Refuse a file beside a loss file that would take the place of a library.

    Args:
        path: the loss file.
        helpers: names of the modules that it imports from beside it.
    """
    names = {helper.partition(".")[0] for helper in helpers}
    for name in sorted(names & _library_modules() if names else ()):
        raise HarnessError(
            f"{path} imports '{name}' from beside it, which is the name of a library that "
            "metric-harness needs; rename that file or folder, and the import"
        )


@cache
def _library_modules() -> frozenset[str]:
    """Modules of Python itself and of every package that metric-harness requires."""
    waiting, needed = ["metric-harness"], set()
    while waiting:
        package = waiting.pop()
        if package not in needed:
            needed.add(package)
            with suppress(PackageNotFoundError):  # needed on another system only
                waiting += [_package(one) for one in requires(package) or () if "extra" not in one]
    installed = packages_distributions().items()
    found = {name for name, packages in installed if needed & {_package(p) for p in packages}}
    return frozenset(found | sys.stdlib_module_names)


def _package(requirement: str) -> str:
    """The name of a required package, in the spelling in which names are compared."""
    return re.sub(r"[-_.]+", "-", re.split(r"[^\w.-]", requirement)[0]).lower()


def digest_of(sources: Mapping[str, bytes]) -> str:
    """Of a file alone its hash, as it has always been."""
    content = list(sources.values())
    if len(content) > 1:
        parts = [f"{name}:{hashlib.sha256(sources[name]).hexdigest()}" for name in sorted(sources)]
        content = ["\n".join(parts).encode()]
    return hashlib.sha256(content[0]).hexdigest()[:8]


def keep_sources(loss: str, search: Path) -> None:
    """Put the source of a loss beside its study; one that is registered has none."""
    if not is_file(loss):
        return
    for name, content in sources_of(Path(loss)).items():
        path = search / SOURCE / name
        if not path.is_file() or path.read_bytes() != content:
            make_folder(path.parent)
            with replacing(path) as file:
                file.write(content)


def check_unchanged(loss: str, search: Path) -> None:
    """Refuse a loss file that is not what was searched, and say what became of it."""
    kept = search / SOURCE / Path(loss).name
    if not is_file(loss) or not kept.is_file() or Path(loss).absolute() == kept.absolute():
        return
    advice = (
        f"  what was searched is kept: harness eval --loss {kept}\n"
        "  to search what it is today: harness search"
    )
    if not Path(loss).is_file():
        raise HarnessError(f"its loss file is gone: there is no {loss}\n{advice}")
    lines = list(_differences(sources_of(kept), sources_of(Path(loss))))
    if lines:
        more = f"\n    and {len(lines) - MOST_LINES} more lines" if len(lines) > MOST_LINES else ""
        shown = "".join(f"\n    {line}" for line in lines[:MOST_LINES])
        raise HarnessError(f"{loss} was changed since it was searched:{shown}{more}\n{advice}")


def _differences(old: Sources, new: Sources) -> Iterator[str]:
    """As `diff` shows them."""
    for name in dict.fromkeys([*old, *new]):
        before, after = (
            files.get(name, b"").decode(errors="backslashreplace").splitlines()
            for files in (old, new)
        )
        yield from difflib.unified_diff(before, after, name, name, lineterm="", n=0)
