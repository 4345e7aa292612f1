"""Names to objects: files found by listing their folder, users' files, installed packages.

A file registers what it exports: METHODS, DATASETS, PROTOCOLS, TRUNKS or LOGGERS. An installed
package registers the same through an entry point in the group `harness.losses`,
`harness.datasets`, `harness.protocols`, `harness.trunks` or `harness.loggers`.
"""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import logging
import os
import pkgutil
import reprlib
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from difflib import get_close_matches
from functools import cache
from importlib.metadata import entry_points
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from harness.errors import HarnessError, convert_value_errors, spell_code_error, unknown
from harness.imported_features import find_imported
from harness.loss_file import check_helpers, digest_of, file_here, is_file, modules_in, sources_of
from harness.losses.method import LOSS_LR, Method, Preset, Space, check_space, on_step, type_of
from harness.old_import_names import old_import_names
from harness.protocols.protocol import SEPARATOR, EvaluationProtocol, check, parse_changes
from harness.records.layout import VERSION
from harness.system.forks import ending_forks
from harness.system.process_state import contained

if TYPE_CHECKING:
    from harness.datasets.dataset import Dataset, Listing
    from harness.trunks.trunk import Trunk


logger = logging.getLogger(__name__)

# Arguments that a user's loss class is given if it takes them.
SIZES = ("num_classes", "embedding_size")


@dataclass(frozen=True)
class Category:
    """One sort of registered thing: where its files are, what they export, its entry points."""

    package: str
    export: str
    group: str
    advice: str


CATEGORIES = {
    "loss": Category(
        *("harness.losses", "METHODS", "harness.losses"),
        "to add one, create losses/{}.py or pass a .py file",
    ),
    "dataset": Category(
        *("harness.datasets", "DATASETS", "harness.datasets"),
        "for your own images: --dataset folder:PATH; for features: harness data import-features",
    ),
    "protocol": Category(
        *("harness.protocols", "PROTOCOLS", "harness.protocols"),
        "to change one, name it: mlrc+batch_size=64",
    ),
    "trunk": Category(
        *("harness.trunks", "TRUNKS", "harness.trunks"),
        "to add one, create harness/trunks/{}.py",
    ),
    "logger": Category(
        *("harness.loggers", "LOGGERS", "harness.loggers"),
        "to add one, create harness/loggers/{}.py",
    ),
}


@cache
def items(category: str) -> dict[str, Any]:
    """Every registered object of a category by name, in the order of the names."""
    found: dict[str, tuple[str, Any]] = {}
    for place, item in _exported(CATEGORIES[category]):
        for name in (item.name, *getattr(item, "aliases", ())):
            if name in found:
                raise HarnessError(
                    f"there are two of {category} '{name}': in {found[name][0]} and in {place}; "
                    "rename one"
                )
            found[name] = place, item
    return {name: item for name, (_, item) in sorted(found.items()) if item.name == name}


def names(category: str) -> list[str]:
    """Every registered name of a category."""
    return list(items(category))


def _exported(category: Category) -> Iterable[tuple[str, Any]]:
    """Every object with the module that exports it."""
    package = importlib.import_module(category.package)
    modules = [f"{category.package}.{info.name}" for info in pkgutil.iter_modules(package.__path__)]
    for name in modules:
        if not name.rpartition(".")[2].startswith("_"):
            for item in getattr(importlib.import_module(name), category.export, ()):
                yield name, item
    for point in entry_points(group=category.group):
        try:
            with _naming(f"plug-in {point.name} ({point.value}) cannot be used"):
                with contained(by_owner=False), old_import_names(f"plug-in {point.name}"):
                    plugin = point.load()
                found = [(point.value, item) for item in getattr(plugin, category.export)]
                assert all(item.name for _, item in found)
        except HarnessError as error:  # the others may be what is asked for
            logger.warning("%s", error)
        else:
            yield from found


def load_item(category: str, name: str) -> Any:
    """The registered object of a name, or of an alias of it."""
    known = items(category)
    aliases = {
        alias: item.name for item in known.values() for alias in getattr(item, "aliases", ())
    }
    name = aliases.get(name, name)
    if name not in known:
        raise unknown(category, name, known, CATEGORIES[category].advice.format(name), aliases)
    return known[name]


def load_method(name: str) -> Method:
    """A method by name, alias or path of a Python file."""
    if is_file(name):
        return _method_of_file(Path(name))
    return load_item("loss", name)


def full_name(method: str) -> str:
    """What an alias stands for, or the row of a loss file; any other name stays as it is.

    Without torch, which the losses need, no alias is known.
    A file that is not here may have been searched elsewhere: its name alone stands for its rows.
    """
    if is_file(method):
        return load_method(method).name if Path(method).is_file() else Path(method).stem
    try:
        return load_method(method).name
    except (HarnessError, ModuleNotFoundError):
        return method


def find_file(loss: str) -> str:
    """The Python file in this folder that a name stands for: my_loss, or my_loss@1a2b3c4d.

    Any other name stays as it is, such as that of a registered loss or of another version.
    """
    stem, version, _ = loss.partition(VERSION)
    file = file_here(loss)
    if not file or any(stem in (item.name, *item.aliases) for item in items("loss").values()):
        return loss
    return loss if version and load_method(file).name != loss else file


def load_dataset(spec: str) -> tuple[Dataset, Path | None]:
    """A data set by name, and the path behind a colon as in `folder:PATH`."""
    name, colon, path = spec.partition(":")
    dataset: Dataset = find_imported(name) or load_item("dataset", name)
    if colon and not dataset.needs_root:
        raise HarnessError(f"data set '{name}' is embedded and has no path; give --dataset {name}")
    return dataset, Path(os.path.expanduser(path)) if path else None


def list_images(dataset: Dataset, path: Path | None, data_root: str) -> Listing:
    """The images of a data set, in the path of its name, else in the folder that the user set.

    Listed once: a search of thirty losses asks thirty times. `forget_listings` looks again.
    """
    root = path or (Path(os.path.expanduser(data_root)) if data_root else None)
    key = (dataset.name, root and root.absolute())
    if key not in _listings:
        _listings[key] = _listed(dataset, root)
    return _listings[key]


_listings: dict[tuple[str, Path | None], Listing] = {}


def forget_listings() -> None:
    """Called where a command begins: files may have changed since the last one."""
    _listings.clear()


def _listed(dataset: Dataset, root: Path | None) -> Listing:
    try:
        with convert_value_errors():
            return dataset.list_images(root)
    except OSError as error:
        raise HarnessError(
            f"data set '{dataset.name}': cannot read {error.filename or root}: {error.strerror}\n"
            "  it must be a file or a folder as the data set has it, and yours to read"
        ) from None


def load_trunk(spec: str) -> Trunk:
    """A trunk by name, or one of a family as in `timm:resnet18`."""
    family, colon, member = spec.partition(":")
    if not colon:
        return load_item("trunk", spec)
    with convert_value_errors():
        return load_item("trunk", f"{family}:NAME").member(member)


def load_protocol(
    spec: str, dataset: str, changes: Mapping[str, Any] | None = None, trunk: str = ""
) -> EvaluationProtocol:
    """A protocol settled for a data set.

    Args:
        spec: its name, perhaps with changes: `mlrc+batch_size=64`.
        dataset: whose settings it takes.
        changes: more of them, which those in the spec override.
        trunk: instead of the protocol's; it may have settings of its own.
    """
    name, _, spelled = spec.partition(SEPARATOR)
    protocol: EvaluationProtocol = load_item("protocol", name)
    with convert_value_errors(f"protocol '{spec}'"):
        wanted = parse_changes(spelled, type(protocol)) if spelled else {}
        settled = protocol.for_dataset(dataset, {**(changes or {}), **wanted}, trunk)
        check(settled)
    return settled


def settings_of(spec: str, dataset: str) -> dict[str, Any]:
    """Every field of a protocol that a result depends on."""
    return load_protocol(spec, dataset).identity()


def _method_of_file(path: Path) -> Method:
    """The method in a user's file: METHODS with one entry, or one PML loss class and SPACE."""
    if not path.is_file():
        raise HarnessError(f"no file at {path}; --loss takes a name or a Python file")
    module = import_file(path)
    methods = getattr(module, "METHODS", None)
    method = _method_of_class(path, module) if methods is None else _only_one(path, methods)
    _check_name(path, method.name)
    with _naming(f"{path} cannot be used"):
        check_space(method.space("cub", 8))
        method.preset("mlrc", "cub")
    # The source is part of the name, so that an edited loss never continues an old study.
    return replace(method, name=f"{method.name}{VERSION}{digest_of(sources_of(path))}")


def _check_name(path: Path, name: str) -> None:
    """It becomes a folder, and stands in tables."""
    if not name.strip(". ") or not name.isprintable() or {"/", "\\"} & set(name):
        raise HarnessError(
            f"{path} names its method {name!r}; a name is text in one line, without slashes, as "
            "'my_loss'"
        )


def _only_one(path: Path, methods: Any) -> Method:
    if not isinstance(methods, Sequence) or not all(isinstance(one, Method) for one in methods):
        raise HarnessError(
            f"METHODS of {path} must be a tuple of harness.losses.method.Method, such as "
            f"(Method(...),), got {reprlib.repr(methods)}"
        )
    if len(methods) != 1:
        raise HarnessError(
            f"METHODS of {path} must hold one method, got {len(methods)}; give each a file"
        )
    return methods[0]


@contextmanager
def _naming(what: str) -> Iterator[None]:
    """Say in words what code of others failed of, which may raise anything."""
    try:
        yield
    except (HarnessError, KeyboardInterrupt):
        raise
    except BaseException as error:  # SystemExit comes from a script that parses its arguments
        raise HarnessError(f"{what}: {spell_code_error(error)}") from error


def import_file(path: Path) -> ModuleType:
    """The module in a user's file, which need not be on the path; it may import what is beside."""
    name = f"harness_user_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # so that objects of its classes can be pickled
    helpers = modules_in(sources_of(path))
    check_helpers(path, helpers)
    for helper in helpers:  # those of another folder, or from before they were edited
        sys.modules.pop(helper, None)
    importlib.invalidate_caches()
    sys.path.insert(0, str(path.parent.absolute()))
    try:
        with (
            contained(str(path), fresh=True),
            _naming(f"{path} does not import"),
            ending_forks(),
            old_import_names(str(path), path.parent),
        ):
            spec.loader.exec_module(module)
            for helper in helpers:  # also what only a function imports, later
                importlib.import_module(helper)
    finally:
        with suppress(ValueError):  # the file may have changed the path itself
            sys.path.remove(str(path.parent.absolute()))
    return module


def _method_of_class(path: Path, module: ModuleType) -> Method:
    from pytorch_metric_learning.losses import BaseMetricLossFunction

    classes = [
        value
        for value in vars(module).values()
        if inspect.isclass(value)
        and issubclass(value, BaseMetricLossFunction)
        and value.__module__ == module.__name__
    ]
    if len(classes) != 1:
        raise HarnessError(
            f"{path} must define one pytorch-metric-learning loss class (it defines "
            f"{len(classes)}) and may define SPACE, or export METHODS"
        )
    with convert_value_errors(f"SPACE of {path}"):
        space = check_space(getattr(module, "SPACE", None) or {})
    return _wrap_class(path.stem, classes[0], space)


def _wrap_class(name: str, loss_class: type, space: Space) -> Method:
    """A Method around a plain PML class: first trial in the middle of the space."""
    takes = _arguments(loss_class)
    sizes = [size for size in SIZES if size in takes]
    wrong = [param for param in space if param not in takes and param != "loss_lr"]
    if wrong:
        close = get_close_matches(wrong[0], takes, n=1)
        meant = f"; did you mean '{close[0]}'?" if close else f"; it takes: {', '.join(takes)}"
        raise HarnessError(
            f"SPACE of {name} names '{wrong[0]}', which {loss_class.__name__} does not take{meant}"
        )
    needed = [arg for arg, required in takes.items() if required and arg not in (*sizes, *space)]
    if needed:
        raise HarnessError(
            f"{loss_class.__name__} in {name}.py needs '{needed[0]}', which it is not given\n"
            f"  it is given {' and '.join(SIZES)} if it takes arguments of these names, and what "
            "SPACE names; rename the argument, add it to SPACE, or give it a default"
        )

    def build_loss(num_classes: int, embedding_size: int, **params: Any) -> Any:
        given = {"num_classes": num_classes, "embedding_size": embedding_size}
        return loss_class(**{size: given[size] for size in sizes}, **params)

    full = dict(space)
    if "num_classes" in takes:  # class weights or proxies: parameters with a rate of their own
        full.setdefault("loss_lr", LOSS_LR)
    middle = {param: _middle(distribution) for param, distribution in full.items()}
    return Method(
        name=name,
        paper="yours",
        build_loss=build_loss,
        loss_params={param: type_of(dist) for param, dist in space.items() if param != "loss_lr"},
        space=lambda dataset, num_classes: full,
        presets={"mlrc": {"cub": Preset(middle)}},
        samples_per_class=1 if "num_classes" in takes else 4,
    )


def _arguments(loss_class: type) -> dict[str, bool]:
    """What a class can be built with, and whether it must be.

    Where it hands `**kwargs` on, also what the class takes that it inherits from.
    """
    found: dict[str, bool] = {}
    for one in inspect.getmro(loss_class):
        if "__init__" not in vars(one):
            continue
        _, *parameters = inspect.signature(one.__init__).parameters.values()  # type: ignore[misc]
        for parameter in parameters:
            named = parameter.kind not in (parameter.VAR_KEYWORD, parameter.VAR_POSITIONAL)
            if named and parameter.name not in found:
                # An inherited argument may be given by the class itself: it is not asked for.
                required = parameter.default is parameter.empty and one is loss_class
                found[parameter.name] = required
        if not any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters):
            break
    return found


def _middle(distribution: Any) -> Any:
    if hasattr(distribution, "choices"):
        return distribution.choices[0]
    low, high = distribution.low, distribution.high
    middle = (low * high) ** 0.5 if distribution.log else (low + high) / 2
    return on_step(distribution, round(middle) if isinstance(low, int) else middle)
