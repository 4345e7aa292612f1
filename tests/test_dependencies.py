"""What is imported is declared, and what is declared is imported."""

from __future__ import annotations

import ast
import configparser
import re
import sys
from importlib.metadata import packages_distributions
from pathlib import Path

ROOT = Path(__file__).parents[1]
OWN = {"harness", "losses", "protocols"}

# Never imported by us, but needed: Optuna's Gaussian process runs its restarts in greenlets, and
# without them one after the other, with a warning.
INDIRECT = {"greenlet"}


def plain(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def requirements(text: str = "", section: str = "") -> dict[str, str]:
    """Package -> what is asked of it, in lines of text or in a section of setup.cfg."""
    if section:
        setup = configparser.ConfigParser()
        setup.read(ROOT / "setup.cfg")
        text = (dict(setup["options"]) | dict(setup["options.extras_require"]))[section]
    lines = [line for line in text.split("\n") if line.strip() and not line.startswith("#")]
    split = (re.fullmatch(r"([\w.-]+)(.*)", line) for line in lines)
    return {plain(found[1]): found[2] for found in split if found}


def declared(section: str) -> set[str]:
    """Names of the packages in a list of requirements."""
    return set(requirements(section=section))


def imported() -> set[str]:
    """Every third-party package that an import statement of ours names, wherever it stands."""
    found = set()
    for folder in OWN:
        for path in (ROOT / folder).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text())):
                names = []
                if isinstance(node, ast.Import):
                    names = [alias.name for alias in node.names]
                elif isinstance(node, ast.ImportFrom) and node.module:
                    names = [node.module]
                found |= {name.partition(".")[0] for name in names}
    return found - OWN - set(sys.stdlib_module_names)


def test_every_import_is_declared() -> None:
    provided = packages_distributions()
    extras = ("cluster", "dashboard", "pretrained", "export", "log")
    known = declared("install_requires").union(*map(declared, extras))
    known |= {"mlflow"}  # the module of mlflow-skinny, which tests may lack
    for module in imported():
        packages = {plain(name) for name in provided.get(module, [module])}
        assert packages & known, f"{module} is imported but not declared in setup.cfg"


def test_every_declared_package_is_imported() -> None:
    provided = packages_distributions()
    used = {plain(name) for module in imported() for name in provided.get(module, [module])}
    # The same module from another wheel, for other machines.
    used |= {"faiss-cpu"} if "faiss-gpu" in used else set()
    assert declared("install_requires") - used - INDIRECT == set()
