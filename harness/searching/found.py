"""The searches in a run directory, found by the config that each has written down."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
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
from harness.searching.storage import open_storage

# Config keys that choose among the searches; all others say how to run.
FILTERS = [name for name, about in keys().items() if about.picks_searches]


@dataclass(frozen=True)
class FoundSearch:
    """A search, its folder and the config that goes on with it.

    Attributes:
        named: whether the user named the file of its loss. A path that only the run folder names
            is never imported: the folder may be somebody else's.
    """

    folder: Path
    config: RunConfig
    named: bool = False

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

    @property
    def table(self) -> Path:
        """Of its results: protocol / data set - trunk."""
        return self.place.table

    @property
    def repeats(self) -> int:
        """Number of searches of the same method, this one included."""
        return len(find_repeats(self.place.folder))

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
    losses: Sequence[str], values: Mapping[str, Any], problems: list[str] | None = None
) -> Iterator[FoundSearch]:
    """The searches of some losses, or all, among those that the values pick.

    Args:
        losses: names, or folders of searches.
        values: config values the user gave; those in FILTERS pick, the others say how to run.
        problems: gets what is wrong with a search, which is then left out.
    """
    runs = Path(RunConfig().updated(values).runs_dir)
    folders = [Path(loss) for loss in losses if Path(loss, CONFIG).is_file()]
    names = {loss for loss in losses if Path(loss) not in folders}
    files: dict[Path, str] = {}
    if names or not folders:
        there = [path.parent for path in find_configs(runs)]
        methods = {folder: place_of_search(folder).method for folder in there}
        wanted = _method_names(names, set(methods.values()))
        folders += [folder for folder in there if not names or methods[folder] in wanted]
        for name, given in wanted.items():
            if is_file(given):
                files |= dict.fromkeys(_of_file(name, given, methods), given)
        folders += [folder for folder in files if folder not in folders]
    for folder in folders:
        try:
            found = _read(folder.resolve(), values, files.get(folder))
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


def _read(folder: Path, values: Mapping[str, Any], file: str | None = None) -> FoundSearch | None:
    """Read a config.

    Args:
        file: of the loss, if the user gave it.
    """
    # What was not written down was not set: nothing is taken from the environment of today.
    saved = RunConfig(storage="").updated(load_config(folder / CONFIG, foreign=True))
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
    return FoundSearch(folder, saved.updated({**how, **where, **loss}), named=file is not None)
