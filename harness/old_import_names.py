"""The old import names `losses` and `protocols`, now `harness.losses` and `harness.protocols`.

Loss files and plug-ins that were written for the old names keep working, and keep their digest.
"""

from __future__ import annotations

import importlib
import logging
import multiprocessing
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import ModuleType

logger = logging.getLogger(__name__)

OLD_NAMES = ("losses", "protocols")


def is_own_module(folder: Path, name: str) -> bool:
    """Whether a folder has a module of this name that is not one of ours."""
    if (folder / name / "__init__.py").is_file():
        return not _is_ours(folder / name)
    return (folder / f"{name}.py").is_file()


@contextmanager
def old_import_names(importer: str, folder: Path | None = None) -> Iterator[None]:
    """Import `losses` as `harness.losses`, and `protocols` as `harness.protocols`.

    A module of the same name in `folder` takes precedence. After the block, an old name that was
    used stays importable (a function may import it later), unless the user has a module of that
    name elsewhere on the path.

    Args:
        importer: the file or package that is imported here, for the message.
        folder: where the imported file is.
    """
    names = [name for name in OLD_NAMES if folder is None or not is_own_module(folder, name)]
    users = _take_out(names)
    finder = _Finder(names)
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)
        used = _take_out(names)
        taken = {name for name in names if name in users or _is_users(name)}
        sys.modules.update(users)
        sys.modules.update({k: v for k, v in used.items() if k.partition(".")[0] not in taken})
        if used and multiprocessing.parent_process() is None:  # workers would repeat it
            old = max(used)
            logger.warning(
                "%s imports '%s', which is now 'harness.%s'; change the import, the old name "
                "will be removed in a later version",
                *(importer, old, old),
            )


def _take_out(names: Sequence[str]) -> dict[str, ModuleType]:
    """Remove the imported modules of these names, and their submodules, from `sys.modules`."""
    found = [name for name in sys.modules if name.partition(".")[0] in names]
    return {name: sys.modules.pop(name) for name in found}


def _is_users(name: str) -> bool:
    spec = PathFinder.find_spec(name)
    return spec is not None and not any(_is_ours(place) for place in _places(spec))


def _is_ours(folder: Path) -> bool:
    ours = (importlib.import_module(f"harness.{name}").__path__ for name in OLD_NAMES)
    return folder.resolve() in {Path(place).resolve() for places in ours for place in places}


def _places(spec: ModuleSpec) -> Iterable[Path]:
    return map(Path, spec.submodule_search_locations or ())


class _Finder(MetaPathFinder):
    def __init__(self, names: Sequence[str]) -> None:
        self.names = names

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname.partition(".")[0] not in self.names:
            return None
        return ModuleSpec(fullname, _SameModule(importlib.import_module(f"harness.{fullname}")))


class _SameModule(Loader):
    """Loads a module that exists already, under another name."""

    def __init__(self, module: ModuleType) -> None:
        self.module, self.spec = module, module.__spec__

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return self.module

    def exec_module(self, module: ModuleType) -> None:
        module.__spec__ = self.spec  # which the import system has replaced
