"""The searches in a run directory, found by the config that each has written down."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import optuna

from harness.config import RunConfig, keys, load_config
from harness.errors import HarnessError
from harness.loss_file import absolute, is_file
from harness.records.layout import (
    CONFIG,
    JOURNAL,
    SOURCE,
    VERSION,
    SearchPlace,
    find_configs,
    find_repeats,
    fits,
    place_of_search,
)
from harness.searching.shared import Storage
from harness.searching.shared_records import find_stored_configs
from harness.searching.storage import open_storage
from harness.system.files import check_writable, write_text

# Config keys that choose among the searches; all others say how to run.
FILTERS = [name for name, about in keys().items() if about.picks_searches]


@dataclass(frozen=True)
class FoundSearch:
    """A search, its folder and the config that goes on with it.

    Attributes:
        named: whether the user named the file of its loss. A path that only the run folder names
            is never imported: the folder may be somebody else's.
        repeats: number of searches of the same method, this one included.
    """

    folder: Path
    config: RunConfig
    named: bool = False
    repeats: int = 1

    @property
    def place(self) -> SearchPlace:
        return place_of_search(self.folder)

    @property
    def name(self) -> str:
        """Name of the study in its storage: the path of its folder below the folder of runs."""
        return self.folder.relative_to(self.place.runs).as_posix()

    @property
    def runs_unnamed_code(self) -> bool:
        """Whether going on would run a loss file that the user did not name."""
        return is_file(self.config.loss) and not self.named

    def check_named(self) -> None:
        """Refuse to go on with a loss file that the user did not name."""
        if self.runs_unnamed_code:
            raise HarnessError(
                f"{self.place.method} was searched from a loss file, which runs only if you name "
                f"it: --loss {Path(self.config.loss).name}"
            )

    def keep_config(self) -> None:
        """Write the config of a search that was found in a database into its folder here."""
        path = self.folder / CONFIG
        if not path.exists():
            check_writable(self.folder)
            write_text(path, self.config.to_yaml())

    @property
    def table(self) -> Path:
        """Of its results: protocol / data set - trunk."""
        return self.place.table

    def storage(self, reads_only: bool = False) -> Storage:
        config = self.config
        return open_storage(config.storage, self.folder, self.name, config.heartbeat, reads_only)

    @contextmanager
    def study(self, storage: Storage | None = None) -> Iterator[optuna.Study]:
        """To be read within the block: a database may go away while it is read.

        Args:
            storage: to write to, too.
        """
        optuna.logging.set_verbosity(optuna.logging.ERROR)
        storage = storage or self.storage(reads_only=True)
        with storage.naming_trouble():
            try:
                found = optuna.load_study(storage=storage.optuna, study_name=self.name)
            except KeyError:
                raise HarnessError(f"there is no study {self.name} in {storage.place}") from None
            if "identity" not in found.user_attrs:
                raise HarnessError(
                    f"the study {self.name} in {storage.place} does not say what it measures: "
                    "it is damaged, or not of harness search"
                )
            yield found


def find_searches(
    losses: Sequence[str],
    values: Mapping[str, Any],
    problems: list[str] | None = None,
    in_database: bool = True,
) -> Iterator[FoundSearch]:
    """The searches of some losses, or all, among those that the values pick.

    Args:
        losses: names, or folders of searches.
        values: config values the user gave; those in FILTERS pick, the others say how to run.
        problems: gets what is wrong with a search, which is then left out.
        in_database: whether to look in the database of the values, too.
    """
    asked = RunConfig().updated(values)
    runs = Path(asked.runs_dir)
    folders = [Path(loss) for loss in losses if Path(loss, CONFIG).is_file()]
    names = {loss for loss in losses if Path(loss) not in folders}
    files: dict[Path, str] = {}
    saved: dict[Path, dict[str, Any]] = {}
    if names or not folders:
        there = [path.parent for path in find_configs(runs)]
        if in_database and asked.storage:
            saved = _in_database(asked.storage, runs, set(there), problems)
            there = sorted([*there, *saved], key=_order)
        methods = {folder: place_of_search(folder).method for folder in there}
        wanted = _method_names(names, set(methods.values()))
        folders += [folder for folder in there if not names or methods[folder] in wanted]
        for name, given in wanted.items():
            if is_file(given):
                files |= dict.fromkeys(_of_file(name, given, methods), given)
        folders += [folder for folder in files if folder not in folders]
    for folder in folders:
        method = place_of_search(folder).folder
        elsewhere = sum(place_of_search(other).folder == method for other in saved)
        try:
            config = saved.get(folder) or load_config(folder / CONFIG, foreign=True)
            repeats = len(find_repeats(method)) + elsewhere
            found = _read(folder.resolve(), config, values, files.get(folder), repeats)
        except HarnessError as error:
            if problems is None:
                raise
            problems.append(f"{folder}: {error}")
            continue
        if found is not None:
            yield found


def _method_names(names: set[str], there: set[str]) -> dict[str, str]:
    """Full name -> as it was given; the registry, which is slow to load, only if it is needed."""
    found: dict[str, str] = {}
    for name in names:
        searched = {name} & there or _versions(name, there)
        if not searched:
            from harness import registry

            searched = {registry.load_method(name).name}
        found |= dict.fromkeys(searched, name)
    return found


def _versions(name: str, there: set[str]) -> set[str]:
    """The searched versions of a user's own loss whose file is not in this folder."""
    if Path(name).is_file():
        return set()
    stem = Path(name).stem if is_file(name) else name
    return {method for method in there if method.startswith(f"{stem}{VERSION}")}


def _of_file(name: str, file: str, methods: Mapping[Path, str]) -> list[Path]:
    """The searches of a loss file as it is, else those from before it was edited, to say so.

    Args:
        methods: folder of a search -> name of its method.
    """
    as_it_is = [folder for folder, method in methods.items() if method == name]
    return as_it_is or [f for f in methods if (f / SOURCE / Path(file).name).is_file()]


def _fits(folder: Path, saved: RunConfig, key: str, value: Any) -> bool:
    """Whether a search has this value: as it was given then, or as its folder spells it out."""
    place = place_of_search(folder)
    if key == "protocol" and value == place.protocol:
        return True
    if key == "trunk" and fits(place.table, None, saved.dataset, value):
        return True
    return (absolute(value) if isinstance(value, str) else value) == getattr(saved, key)


def _in_database(
    url: str, runs: Path, known: Collection[Path], problems: list[str] | None
) -> dict[Path, dict[str, Any]]:
    """Folder -> config, of the searches in a database that have no config in the folder of runs."""
    try:
        found = find_stored_configs(url)
    except HarnessError as error:
        if problems is None:
            raise
        problems.append(str(error))
        return {}
    stored = {runs / name: {**config, "storage": url} for name, config in found.items()}
    return {folder: config for folder, config in stored.items() if folder not in known}


def _order(folder: Path) -> tuple[Path, int]:
    """By the names of methods, then by seeds, the first search of a method first."""
    method = place_of_search(folder).folder
    return method, -1 if folder == method else int(folder.name.rpartition("-")[2])


def _read(
    folder: Path,
    config: Mapping[str, Any],
    values: Mapping[str, Any],
    file: str | None,
    repeats: int,
) -> FoundSearch | None:
    """A search by its config, unless the values pick others.

    Args:
        file: of the loss, if the user gave it.
    """
    # What was not written down was not set: nothing is taken from the environment of today.
    saved = RunConfig(storage="").updated(config)
    if not (saved.storage or (folder / JOURNAL).exists()):
        return None
    if not all(_fits(folder, saved, key, values[key]) for key in FILTERS if key in values):
        return None
    how = {key: value for key, value in values.items() if key not in FILTERS}
    # Which trials there are was settled by the search; its folder is where it was found.
    how["storage"] = how.get("storage", saved.storage) if saved.storage else ""
    # So was the protocol, with all that a preset or the data set changed: it is in the name.
    place = place_of_search(folder)
    where = {"runs_dir": str(place.runs), "protocol": place.protocol}
    loss = {} if file is None else {"loss": file}
    going_on = saved.updated({**how, **where, **loss})
    return FoundSearch(folder, going_on, named=file is not None, repeats=repeats)
