"""Write docs/papers.md from its template and from protocols/papers; `make papers` runs this.

$ python docs/papers_page.py
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from harness.sweeping.paper_figures import PaperFigure, load_figures
from harness.sweeping.paper_settings import Paper, Setting, load_papers

FOLDER = Path(__file__).parent
PAGE = FOLDER / "papers.md"

# In the order of the page, with the name that people use.
SHORT = {
    "mlrc": "Reality check",
    "proxygml": "ProxyGML",
    "hpl": "HPL",
    "ccp": "CCP",
    "drml": "DRML",
    "proxynca++": "ProxyNCA++",
    "hier": "HIER",
}


def page() -> str:
    """The document."""
    environment = Environment(
        loader=FileSystemLoader(FOLDER), undefined=StrictUndefined, keep_trailing_newline=True
    )
    papers, figures = load_papers(), load_figures()
    told = [_told(name, papers[name], figures) for name in SHORT]
    return environment.get_template("papers.md.jinja").render(papers=told)


def _told(name: str, paper: Paper, figures: dict[str, PaperFigure]) -> dict[str, Any]:
    """What the template says of a paper."""
    return {
        "short": SHORT[name],
        "sources": paper.sources,
        "experiments": list(_experiments(paper, figures)),
        "rows": [_row(setting) for setting in paper.settings if setting.value],
        "decisions": [_decision(setting) for setting in paper.settings if setting.decision],
        "notes": paper.notes,
        "missing": paper.missing,
    }


def _experiments(paper: Paper, figures: dict[str, PaperFigure]) -> Iterator[tuple[str, str]]:
    """What is shown, and the commands."""
    for name, stated in paper.figures.items():
        about = f"{figures[name].summary} ({stated.source}; {figures[name].dataset})"
        yield about, f"`harness sweep --figure {name}`"
    for what, commands in paper.commands.items():
        yield what, ", then ".join(f"`{one.strip()}`" for one in commands.split(";"))


def _row(setting: Setting) -> tuple[str, ...]:
    here = "; ".join(f"{fact}: {_spelled(value)}" for fact, value in setting.value.items())
    of = [*setting.runs, *(f"`{loss}`" for loss in setting.losses)]
    return setting.setting, setting.says, setting.source, here, ", ".join(of)


def _spelled(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{_spelled(one)} ({dataset})" for dataset, one in value.items())
    if isinstance(value, list):
        return f"[{', '.join(map(_spelled, value))}]"
    if value is None or isinstance(value, bool):
        return {None: "none", True: "yes", False: "no"}[value]
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def _decision(setting: Setting) -> str:
    """Which source says what, and what we follow."""
    name = setting.setting[0].upper() + setting.setting[1:]
    stated = setting.source != "none"
    parts = [
        f"**{name}** ({setting.source}):" if stated else f"**{name}**:",
        setting.says if stated else "not stated.",
        setting.but,
        f"*Here:* {setting.decision}",
    ]
    return " ".join(filter(None, parts))


if __name__ == "__main__":
    PAGE.write_text(page())
