"""What documents say of the code, of files and of each other is so."""

from __future__ import annotations

import ast
import importlib
import re
from collections import Counter
from pathlib import Path

import pytest
import yaml
from documents import DOCUMENTS, ROOT, blocks, name_of, recipes, sentences, without_blocks

import harness
from harness import registry

every_document = pytest.mark.parametrize("document", DOCUMENTS, ids=name_of)

FOLDERS = "harness|losses|protocols|tests|docs|examples|benchmarks|pretraining|results"


def anchors(document: Path) -> set[str]:
    """What GitHub makes of the headings."""
    headings = re.findall(r"^#+ (.*)$", without_blocks(document), flags=re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


@every_document
def test_every_link_leads_somewhere(document: Path) -> None:
    for link in re.findall(r"\]\(([^)\s]+)\)", without_blocks(document)):
        if link.startswith("https://"):
            continue
        place, _, anchor = link.partition("#")
        target = (document.parent / place).resolve() if place else document
        assert target.exists(), link
        assert not anchor or anchor in anchors(target), link


@every_document
def test_every_path_exists(document: Path) -> None:
    text = without_blocks(document) + "".join(blocks(document, "mermaid"))
    to_be_written = {Path(path).stem for path in recipes()}
    for path in re.findall(rf"(?<![\w./-])((?:{FOLDERS})/[\w./+-]*)", text):
        if not any(stem in path for stem in to_be_written):
            assert (ROOT / path.rstrip(".")).exists(), path


@every_document
def test_python_compiles_and_imports_what_there_is(document: Path) -> None:
    for block in blocks(document, "python"):
        for node in ast.walk(ast.parse(block)):
            if isinstance(node, ast.ImportFrom) and node.module:
                module = importlib.import_module(node.module)
                for alias in node.names:
                    assert alias.name == "annotations" or hasattr(module, alias.name), alias.name


def test_no_sentence_is_written_twice() -> None:
    found = Counter(
        sentence
        for document in DOCUMENTS
        for sentence in sentences(document)
        if len(sentence.split()) >= 6
    )
    assert len(found) > 200
    assert [sentence for sentence, times in found.items() if times > 1] == []


def test_the_readme_fits_on_two_screens() -> None:
    lines = (ROOT / "README.md").read_text().splitlines()
    assert len([line for line in lines if not line.startswith("|")]) <= 120


def test_every_document_can_be_reached_from_the_readme() -> None:
    readme = (ROOT / "README.md").read_text()
    for document in DOCUMENTS:
        if "published" not in document.parts and document.name != "README.md":
            assert f"]({name_of(document)}" in readme, document


def test_the_layout_names_every_package() -> None:
    layout = (ROOT / "docs" / "layout.md").read_text()
    for package in (ROOT / "harness").glob("*/__init__.py"):
        if package.parent.is_symlink():  # losses and protocols, named as they are
            continue
        assert f"`harness/{package.parent.name}/`" in layout  # in the table
        assert f'"harness/{package.parent.name}' in layout  # in the drawing


def test_counts_of_data_sets_are_those_that_are_checked() -> None:
    text = (ROOT / "docs" / "datasets.md").read_text()
    rows = re.findall(r"^\| `(\w+)` \| ([\d,]+) \| ([\d,]+) \|", text, flags=re.MULTILINE)
    assert {name for name, _, _ in rows} == set(registry.names("dataset")) - {"folder"}
    for name, *numbers in rows:
        dataset, _ = registry.load_dataset(name)
        counts = [int(number.replace(",", "")) for number in numbers]
        if dataset.needs_root:
            assert counts == [dataset.expected["classes"], dataset.expected["images"]]
        else:
            listing = dataset.list_images(None)
            assert counts == [listing.num_classes, len(listing.names)]


def test_protocols_and_trunks_are_all_described() -> None:
    for kind, file in (("protocol", "protocols.md"), ("trunk", "datasets.md")):
        text = (ROOT / "docs" / file).read_text()
        assert [name for name in registry.names(kind) if f"`{name}`" not in text] == []


def test_every_benchmark_is_described() -> None:
    text = (ROOT / "docs" / "speed.md").read_text()
    for path in (ROOT / "benchmarks").glob("*.py"):
        is_script = "__main__" in path.read_text()
        assert (f"python -m benchmarks.{path.stem}" if is_script else path.name) in text


def test_the_papers_of_the_methods_are_cited() -> None:
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert citation["version"] == harness.__version__
    cited = {reference["title"].lower() for reference in citation["references"]}
    titles = re.findall(
        r'"([A-Z][^"]{20,})"', " ".join((ROOT / "losses/README.md").read_text().split())
    )
    assert len(titles) >= 6
    assert [title for title in titles if title.rstrip(",").lower() not in cited] == []
