"""Pages of the documentation site that are not in docs/: a hook of MkDocs.

Documents elsewhere in the repository (README.md, CHANGES.md, tables) become pages, and so does
every file that a document links to. The two references are generated: commands from the command
line, Python from docstrings.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path, PurePosixPath
from posixpath import normpath, relpath

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parents[1]

# Document of the repository -> its page. Those in docs/ keep their names.
PAGES = {
    "README.md": "index.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGES.md": "changes.md",
    "SECURITY.md": "security.md",
    "losses/README.md": "losses.md",
    "results/README.md": "results/index.md",
    "results/VERDICT.md": "results/verdict.md",
    "results/published/README.md": "results/published.md",
}
LINK = re.compile(r"\]\(([^)\s#]+)(#[^)\s]*)?\)")
PYTHON = """\
# Python reference

Import everything from `harness`. The losses are described in [Losses](../losses.md).

{functions}
"""


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages that are not in docs/, with their links adapted."""
    pages = dict(PAGES)
    tables = (*ROOT.glob("results/*/*/leaderboard.md"), *ROOT.glob("results/sweeps/*/sweep.md"))
    for table in sorted(tables):
        path = table.relative_to(ROOT).as_posix()
        pages[path] = path.removesuffix(".md").replace("+", "_").replace("=", "_") + ".md"
    pages |= {f"docs/{file.src_uri}": file.src_uri for file in files}
    texts = {source: (ROOT / source).read_text() for source in pages if source.endswith(".md")}
    for source, text in list(texts.items()):
        for target in _targets(source, text):
            if target not in pages and (ROOT / target).is_file():
                pages[target] = f"source/{target}.md"
                texts[target] = _listing(target)
    for source, text in texts.items():
        file = File.generated(config, pages[source], content=_adapted(source, text, pages))
        if existing := files.get_file_from_path(pages[source]):
            files.remove(existing)
        files.append(file)
    for name, text in (("commands", _commands()), ("python", _python())):
        files.append(File.generated(config, f"reference/{name}.md", content=text))
    return files


def _targets(source: str, text: str) -> list[str]:
    """Files of the repository that a document links to."""
    folder = PurePosixPath(source).parent.as_posix()
    links = [found.group(1) for found in LINK.finditer(text)]
    return [normpath(f"{folder}/{link}") for link in links if not link.startswith("http")]


def _adapted(source: str, text: str, pages: dict[str, str]) -> str:
    """The text with links between files turned into links between pages."""
    folder = PurePosixPath(source).parent.as_posix()
    here = PurePosixPath(pages[source]).parent.as_posix()

    def link(found: re.Match[str]) -> str:
        if found.group(1).startswith("http"):
            return found.group()
        target = normpath(f"{folder}/{found.group(1)}")
        if target not in pages:  # a folder
            return "]"
        return f"]({relpath(pages[target], here)}{found.group(2) or ''})"

    return LINK.sub(link, text)


def _listing(path: str) -> str:
    language = {".py": "python", ".sh": "bash", ".yaml": "yaml"}.get(Path(path).suffix, "text")
    return f"# {path}\n\n```{language}\n{(ROOT / path).read_text()}\n```\n"


def _commands() -> str:
    """The help of every command, as a terminal of 80 columns shows it."""
    from typer.main import get_command

    from harness.cli import app

    names = sorted(get_command(app).commands)  # type: ignore[attr-defined]
    sections = [f"## harness {name}\n\n```text\n{_help(name)}\n```" for name in names]
    return "\n\n".join(["# Command reference", *sections]) + "\n"


def _help(name: str) -> str:
    environment = {**os.environ, "COLUMNS": "80", "NO_COLOR": "1", "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "harness", name, "--help"]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    return "\n".join(line.rstrip() for line in done.stdout.strip("\n").splitlines())


def _python() -> str:
    import harness

    return PYTHON.format(functions="\n\n".join(f"::: harness.{name}" for name in harness.__all__))


def on_post_page(output: str, **_: object) -> str:
    """Remove the one script that the theme would fetch from another host.

    Without it, the site's search works from a server and not from disk.
    """
    return re.sub(r'<script src="https://[^"]*"></script>', "", output)
