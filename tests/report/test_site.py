"""The static site: its pages, its links, and how it works in a browser opened from disk."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path
from urllib.parse import unquote

import pytest
from browser import resize, start
from made_records import put_scores
from made_tables import FORMULA, METHODS
from matplotlib.mathtext import math_to_image
from selenium import webdriver
from selenium.webdriver.common.by import By
from selenium.webdriver.support.ui import WebDriverWait

from harness import registry
from harness.cli import main
from harness.judgement.judge import judge
from harness.losses._tools.formulas import formulas_of
from harness.report.page import read_report
from harness.report.site import Site
from harness.verdicts.conclusions import of_tables


@pytest.fixture(scope="module")
def site(results: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("published")
    Site(read_report(results, against="none")).write(folder)
    return folder


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[webdriver.Chrome]:
    driver = start(tmp_path_factory.mktemp("profile"))
    yield driver
    driver.quit()


def test_every_link_leads_to_a_page_of_the_site(site: Path) -> None:
    pages = list(site.rglob("*.html"))
    assert len(pages) == 1 + 2 + len(METHODS) + 1  # the index, tables, methods, no training
    for page in pages:
        for link in re.findall(r'href="([^"#]+)"', page.read_text()):
            assert not link.startswith("http")
            assert (page.parent / unquote(link)).is_file(), (page, link)


def test_the_index_has_the_words_of_the_verdict_and_every_row(site: Path, results: Path) -> None:
    text = (site / "index.html").read_text()
    tables = judge(results).tables
    assert of_tables(tables) in text
    rows = re.findall(r'<th scope="row"><a[^>]*>([^<]+)</a></th><td>', text)
    assert len(rows) == sum(len(table.rows) for table in tables)


def test_a_method_has_its_formula_its_published_scores_and_its_rows(site: Path) -> None:
    text = (site / "methods" / "hpl-pa.html").read_text()
    assert "<svg" in text and "Hierarchical Proxy-based Loss" in text
    assert "HPL supplement" in text
    for dataset in ("cub", "cars"):
        assert f"hpl-pa ranks 5 of 6 on {dataset}" in text


def test_every_loss_has_a_formula_that_can_be_drawn() -> None:
    for name in registry.names("loss"):
        assert formulas_of(name), name
        for formula in formulas_of(name):
            math_to_image(f"${formula}$", BytesIO(), format="svg")


def test_it_is_searched_and_followed_from_disk_without_requests(
    browser: webdriver.Chrome, site: Path
) -> None:
    resize(browser, 1200)
    browser.get((site / "index.html").as_uri())
    browser.find_element(By.ID, "filter").send_keys("hpl cars")
    rows = browser.find_elements(By.CSS_SELECTOR, "#rows tbody tr")
    (row,) = [row for row in rows if row.is_displayed()]
    assert "hpl-pa" in row.text and "cars" in row.text
    link = row.find_element(By.CSS_SELECTOR, "td a")
    browser.execute_script("arguments[0].click()", link)
    found = WebDriverWait(browser, 30).until(
        lambda _: browser.find_elements(By.CSS_SELECTOR, '.plot[data-figure="best"]')
    )
    browser.execute_script("arguments[0].scrollIntoView({behavior: 'instant'})", found[0])
    WebDriverWait(browser, 30).until(lambda _: found[0].get_attribute("data-drawn") == "yes")
    assert browser.get_log("browser") == []
    messages = [json.loads(entry["message"])["message"] for entry in browser.get_log("performance")]
    sent = [m["params"] for m in messages if m["method"] == "Network.requestWillBeSent"]
    urls = {p["request"]["url"] for p in sent if p["documentURL"].startswith(site.as_uri())}
    assert urls and all(url.startswith((site.as_uri(), "data:", "blob:")) for url in urls)
    home = browser.find_element(By.LINK_TEXT, "All tables")
    assert home.get_attribute("href") == (site / "index.html").as_uri()


@pytest.mark.parametrize("width", [375, 1600])
def test_its_pages_fit_the_window(browser: webdriver.Chrome, site: Path, width: int) -> None:
    for page in ("index.html", "methods/ccp-c2.html", "tables/mlrc/cub-bninception.html"):
        resize(browser, width)
        browser.get((site / page).as_uri())
        assert browser.execute_script("return document.documentElement.scrollWidth") <= width, page


def test_hostile_names_are_text(site: Path) -> None:
    text = (site / "index.html").read_text()
    assert FORMULA not in text and "=cmd()|&#34;x&#34;_$y$&amp;{z}" in text


def test_the_command_writes_a_site_and_refuses_a_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    put_scores(tmp_path / "results", "ms", [0.5, 0.6])
    flags = ["--results-dir", str(tmp_path / "results"), "--against", "none"]
    assert main(["site", *flags, "--output", str(tmp_path / "public")]) == 0
    assert "1 table, 1 method" in capsys.readouterr().out
    assert (tmp_path / "public" / "tables" / "mlrc" / "cub-bninception.html").is_file()
    (tmp_path / "file").touch()
    assert main(["site", *flags, "--output", str(tmp_path / "file")]) == 2
    assert "is not a folder" in capsys.readouterr().err
