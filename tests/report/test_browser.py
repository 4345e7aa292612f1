"""The page in a real browser: it draws, sorts, searches, hovers, and makes no requests."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from browser import resize, start
from made_tables import CLASSES, FORMULA, MARKUP, METHODS
from selenium import webdriver
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.remote.webelement import WebElement
from selenium.webdriver.support.ui import Select, WebDriverWait

from harness.report.page import PARTS, read_report, render
from harness.report.pictures import FoundImages, Pictures, Query
from harness.tables.leaderboard import build

# A picture of one pixel.
PIXEL = "data:image/gif;base64,R0lGODlhAQABAIAAAAAAAP///yH5BAEAAAAALAAAAAABAAEAAAIBRAA7"
WAIT = 20


def made_pictures() -> Pictures:
    answers = [FoundImages(method, [1, 2], [True, False]) for method in ("ms", "triplet", FORMULA)]
    spread = [float(i) for i in range(6)]
    return Pictures(
        note="Models of reproduction 1.",
        queries=[
            Query(0, MARKUP, "random", "<b>file</b>.png", answers),
            Query(1, "Albatross", "worst", "other.png", answers),
        ],
        thumbs=[PIXEL, f"{PIXEL}#1", f"{PIXEL}#2"],
        points={
            "classes": [0, 0, 1, 1, 2, 2],
            "names": CLASSES,
            "groups": [0, 0, 0, 0, 1, 1],
            "group_names": ["superclass 1", "superclass 2"],
            "thumbs": [0, 1, 2, 0, 1, 2],
            "files": [f"image {i}" for i in range(6)],
        },
        maps={m: {"t-SNE": [spread, spread[::-1]], "PCA": [spread, spread]} for m in ("ms", "x")},
        similarities={
            m: {"edges": [0.0, 0.5, 1.0], "within": [0.5, 1.5], "between": [1.8, 0.2]}
            for m in ("ms", "x")
        },
    )


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[webdriver.Chrome]:
    driver = start(tmp_path_factory.mktemp("profile"))
    yield driver
    driver.quit()


@pytest.fixture(scope="module")
def address(results: Path, tmp_path_factory: pytest.TempPathFactory) -> str:
    report = read_report(results)
    report.pictures["mlrc/cars-bninception"] = made_pictures()
    path = tmp_path_factory.mktemp("page") / "report.html"
    path.write_text(render(report))
    return path.as_uri()


@pytest.fixture
def page(browser: webdriver.Chrome, address: str) -> webdriver.Chrome:
    """The page as it opens: at its first table, cars."""
    resize(browser, 1200)
    browser.get(address)
    return browser


def until(browser: webdriver.Chrome, condition: Callable[[], Any]) -> Any:
    return WebDriverWait(browser, WAIT, poll_frequency=0.1).until(lambda _: condition())


def shown(browser: webdriver.Chrome, selector: str) -> list[WebElement]:
    return [e for e in browser.find_elements(By.CSS_SELECTOR, selector) if e.is_displayed()]


def drawn(browser: webdriver.Chrome, figure: WebElement) -> str:
    """Scroll to a figure and wait until it says that it is drawn, or that it is empty."""
    browser.execute_script("arguments[0].scrollIntoView({behavior: 'instant'})", figure)
    return str(until(browser, lambda: figure.get_attribute("data-drawn")))


def figure_of(browser: webdriver.Chrome, name: str) -> WebElement:
    (figure,) = shown(browser, f'.plot[data-figure="{name}"]')
    assert drawn(browser, figure) == "yes"
    return figure


def choose(figure: WebElement, label: str, value: str) -> None:
    for holder in figure.find_elements(By.CSS_SELECTOR, ".controls label"):
        if holder.text.startswith(label):
            Select(holder.find_element(By.TAG_NAME, "select")).select_by_value(value)
            return
    raise AssertionError(f"no choice named {label}")


def column(browser: webdriver.Chrome, number: int) -> list[str]:
    """Of the first leaderboard shown."""
    table = shown(browser, "table.board")[0]
    cells = table.find_elements(By.CSS_SELECTOR, f"tbody tr > :nth-child({number})")
    return [cell.text.split("\n")[0] for cell in cells if cell.is_displayed()]


# What each figure draws its data with.
MARKS = {
    **dict.fromkeys(("best", "training", "similarities"), ".scatterlayer .js-line"),
    **dict.fromkeys(
        ("slices", "carry", "classes", "cost", "published", "map"), ".scatterlayer .point"
    ),
    **{"contour": ".contourlayer path", "importance": ".barlayer path", "times": ".boxlayer path"},
}


def test_every_figure_has_marks_in_it(page: webdriver.Chrome) -> None:
    figures = shown(page, ".plot")
    names = {figure.get_attribute("data-figure") for figure in figures}
    assert names == set(MARKS)
    for figure in figures:
        assert drawn(page, figure) == "yes"
        name = figure.get_attribute("data-figure") or ""
        marks = until(page, lambda f=figure, k=name: f.find_elements(By.CSS_SELECTOR, MARKS[k]))
        assert len(marks) >= (1 if name == "importance" else 2), name
        assert figure.find_element(By.CSS_SELECTOR, ".canvas").get_attribute("aria-label")


def test_it_makes_no_request_and_logs_nothing(page: webdriver.Chrome) -> None:
    for figure in shown(page, ".plot"):
        drawn(page, figure)
    assert page.get_log("browser") == []
    messages = [json.loads(e["message"])["message"] for e in page.get_log("performance")]
    sent = [m["params"] for m in messages if m["method"] == "Network.requestWillBeSent"]
    requests = [p["request"]["url"] for p in sent if p["documentURL"] == page.current_url]
    assert page.current_url in requests
    assert {url for url in requests if not url.startswith(("data:", "blob:"))} == {page.current_url}
    # And the policy holds: what somebody might slip in does not run.
    page.execute_script(
        "const s = document.createElement('script'); s.textContent = 'window.slipped = 1';"
        "document.body.append(s); const i = new Image(); i.src = 'https://example.org/x.png';"
    )
    assert page.execute_script("return window.slipped") is None
    blocked = until(page, lambda: page.get_log("browser"))
    assert all("Content Security Policy" in entry["message"] for entry in blocked)


def test_the_first_table_is_there_at_once(browser: webdriver.Chrome, address: str) -> None:
    """Before any script has drawn: its rows are in the page."""
    browser.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": True})
    try:
        browser.get(address)
        assert len(shown(browser, "table.forest")) == 2  # of two data sets
        assert len(shown(browser, "table.board")) == 2  # those of single models are folded
        assert len(shown(browser, "table.matrix")) == 2
        assert not shown(browser, ".plot") and not shown(browser, "#filter")
    finally:
        browser.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": False})


def test_numbers_are_those_of_the_csv_and_sort_as_numbers(
    page: webdriver.Chrome, results: Path
) -> None:
    frame = build(next(results.glob("mlrc/cars-*"))).frame
    means = frame["map_at_r_concatenated"]
    texts = [
        f"{100 * mean:.2f}" + ("" if pd.isna(half) else f" ± {100 * half:.2f}")
        for mean, half in zip(means, frame["map_at_r_concatenated_ci95"], strict=True)
    ]
    assert column(page, 3) == texts
    head = shown(page, "table.board")[0].find_elements(By.CSS_SELECTOR, "thead button")[2]
    page.execute_script("arguments[0].scrollIntoView({behavior: 'instant', block: 'center'})", head)
    head.click()
    assert column(page, 3) == texts  # the highest first, as it was
    head.send_keys(Keys.ENTER)  # by keyboard, too
    assert column(page, 3) == texts[::-1]
    assert head.find_element(By.XPATH, "..").get_attribute("aria-sort") == "ascending"
    shown(page, "table.board")[0].find_elements(By.CSS_SELECTOR, "thead button")[0].click()
    assert column(page, 1) == ["1", "2", "3", "4", "5", "6", ""]  # the naive row has none


def test_a_search_leaves_the_rows_that_match(page: webdriver.Chrome) -> None:
    field = page.find_element(By.ID, "filter")
    field.send_keys("TRIP")
    assert [name.split(" ")[0] for name in column(page, 2)] == ["triplet"]
    assert page.find_element(By.ID, "found").text == "1 method"
    field.send_keys(Keys.BACKSPACE * 4)
    assert len(column(page, 2)) == len(METHODS) + 1


def test_tables_are_shown_one_at_a_time_or_all(page: webdriver.Chrome) -> None:
    titles = [e.text for e in shown(page, "#scores h3")]
    assert titles == ["cars, bninception, protocol mlrc"]
    Select(page.find_element(By.ID, "table")).select_by_value("")
    assert len(shown(page, "#scores h3")) == 2
    for part in PARTS:
        assert shown(page, f"#{part} h2")
    other = page.find_element(By.CSS_SELECTOR, 'a[data-choose="mlrc/cub-bninception"]')
    page.execute_script("arguments[0].click()", other)
    assert [e.text for e in shown(page, "#scores h3")] == ["cub, bninception, protocol mlrc"]


@pytest.mark.parametrize("width", [375, 800, 1600])
def test_dots_of_a_forest_plot_are_in_the_order_of_the_scores(
    browser: webdriver.Chrome, address: str, width: int
) -> None:
    resize(browser, width)
    browser.get(address)
    plot = shown(browser, ".forest")[0]
    dots = plot.find_elements(By.CSS_SELECTOR, ".dot")
    places = [dot.rect["x"] for dot in dots]
    assert len(places) == len(METHODS) + 1
    assert places == sorted(places, reverse=True)
    (gap,) = {e.rect["x"] for e in plot.find_elements(By.CSS_SELECTOR, ".break")}
    assert places[-1] < gap < places[-2]  # the row without training is beyond the break
    tracks = plot.find_elements(By.CSS_SELECTOR, ".track")
    assert all(track.rect["x"] >= 0 for track in tracks)
    assert all(track.rect["x"] + track.rect["width"] <= width for track in tracks)


def test_hostile_names_are_text(page: webdriver.Chrome) -> None:
    assert any(name.startswith(FORMULA) for name in column(page, 2))
    assert page.find_elements(By.CSS_SELECTOR, "main script, main b > b, main img[onerror]") == []
    figure = figure_of(page, "best")
    names = [e.text for e in figure.find_elements(By.CSS_SELECTOR, ".legendtext")]
    assert FORMULA in names
    figure_of(page, "classes")
    gains = until(page, lambda: shown(page, ".gains td, .gains th"))
    assert MARKUP in [cell.text for cell in gains]
    queries = shown(page, ".query .asked")
    assert MARKUP in queries[0].text and "<b>file</b>.png" in queries[0].text


def test_a_cell_of_the_matrix_says_its_sentence(page: webdriver.Chrome) -> None:
    cells = shown(page, ".matrix td[title]")
    page.execute_script("arguments[0].focus()", cells[0])
    words = shown(page, ".words")[0]
    assert words.text.startswith(f"{FORMULA} is better than contrastive by")
    page.switch_to.active_element.send_keys(Keys.ARROW_RIGHT)
    assert words.text.startswith(f"{FORMULA} is better than triplet by")


def test_other_methods_can_be_chosen(page: webdriver.Chrome) -> None:
    figure = figure_of(page, "training")

    def legend() -> list[str]:
        return [e.text for e in figure.find_elements(By.CSS_SELECTOR, ".legendtext")]

    assert legend() == [f"fold {number}" for number in (1, 2, 3, 4)]
    choose(figure, "Method", "ccp-c2")
    until(page, lambda: "new proxies" in legend())
    figure = figure_of(page, "classes")
    choose(figure, "Up", "ms")
    until(page, lambda: "ms, MAP@R %" in figure.text)


def test_two_methods_stand_side_by_side_in_the_gallery(page: webdriver.Chrome) -> None:
    until(page, lambda: shown(page, ".gallery-controls select"))
    query = shown(page, ".query")[0]

    def methods() -> list[str]:
        answers = query.find_elements(By.CSS_SELECTOR, ".answer")
        return [a.get_attribute("data-method") or "" for a in answers if a.is_displayed()]

    assert methods() == ["ms", "triplet"]
    selects = [Select(e) for e in shown(page, ".gallery-controls select")]
    selects[1].select_by_value(FORMULA)
    assert methods() == ["ms", FORMULA]
    image = query.find_element(By.CSS_SELECTOR, ".thumb.right img")
    assert image.get_attribute("src") == f"{PIXEL}#1"
    assert image.get_attribute("alt") == "right"
    selects[2].select_by_value("worst")
    assert [q.get_attribute("data-chosen-as") for q in shown(page, ".query")] == ["worst"]


def test_hovering_over_the_map_shows_the_image(page: webdriver.Chrome) -> None:
    figure = figure_of(page, "map")
    assert not shown(page, "#hover")
    page.execute_script("arguments[0].scrollIntoView({block: 'center'})", figure)
    time.sleep(0.3)
    point = figure.find_elements(By.CSS_SELECTOR, ".scatterlayer .point")[0]
    ActionChains(page).move_to_element(point).perform()
    (box,) = until(page, lambda: shown(page, "#hover"))
    assert box.find_element(By.TAG_NAME, "img").get_attribute("src").startswith(PIXEL)
    assert "image" in box.text and box.text.split(":")[0] in CLASSES


@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize("width", [375, 1600])
def test_it_fits_the_window_in_light_and_dark(
    browser: webdriver.Chrome, address: str, width: int, dark: bool
) -> None:
    resize(browser, width, dark=dark)
    browser.get(address)
    drawn(browser, shown(browser, '.plot[data-figure="cost"]')[0])
    assert browser.execute_script("return document.documentElement.scrollWidth") <= width
    ground = browser.execute_script("return getComputedStyle(document.body).backgroundColor")
    light = sum(int(part) for part in ground[4:-1].split(",")) > 380
    assert light != dark
    button = browser.find_element(By.ID, "theme")
    button.click()
    changed = browser.execute_script("return getComputedStyle(document.body).backgroundColor")
    assert changed != ground


def test_it_prints_with_figures_that_nobody_scrolled_to(page: webdriver.Chrome) -> None:
    page.execute_script("window.scrollTo(0, 0)")
    until(page, lambda: page.execute_script("return window.Plotly !== undefined"))
    # What stands on paper is what is there right after the browser has told that it prints.
    script = "dispatchEvent(new Event('beforeprint')); setTimeout(arguments[0], 0)"
    page.execute_async_script(script)
    figures = shown(page, ".plot")
    assert figures and all(figure.get_attribute("data-drawn") for figure in figures)
    document = page.execute_cdp_cmd("Page.printToPDF", {"printBackground": True})
    assert len(document["data"]) > 50_000
