"""The report's page in a real browser: the file, and live."""

import json
import os
import threading
import time
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from selenium import webdriver
from selenium.common.exceptions import StaleElementReferenceException, TimeoutException
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.support.ui import Select, WebDriverWait

from gymtrain_report.choice import choose
from gymtrain_report.folder import RunFolder
from gymtrain_report.live import Live, serve
from gymtrain_report.page import file_of, room_for_rollouts
from tests.unit.report.report_folders import call, conversation, made, rollout, step_rows, with_tokens, write

pytestmark = pytest.mark.browser

_SECONDS = 20


@pytest.fixture(scope="module")
def browser() -> Iterator[webdriver.Chrome]:
    options = webdriver.ChromeOptions()
    for argument in ("--headless=new", "--window-size=1400,1100", "--disable-dev-shm-usage"):
        options.add_argument(argument)
    if os.geteuid() == 0:
        options.add_argument("--no-sandbox")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(os.environ["CHROMEDRIVER"]))
    driver.set_page_load_timeout(_SECONDS)
    yield driver
    driver.quit()


class Page:
    """What a person sees and does on it."""

    def __init__(self, browser: webdriver.Chrome, address: str) -> None:
        self.browser = browser
        browser.get_log("browser")
        browser.get(address)
        self.until(lambda: "rollouts" in self.text("#found"), "the rollouts are listed")

    def until(self, condition: Callable[[], Any], what: str) -> None:
        try:
            # A row may be drawn anew between two questions about it.
            waiting = WebDriverWait(self.browser, _SECONDS, 0.05, ignored_exceptions=[StaleElementReferenceException])
            waiting.until(lambda _: condition(), what)
        except TimeoutException as error:
            raise AssertionError(f"not so: {what}. The page:\n{self.text('main')[-2000:]}\n{self.errors()}") from error

    def text(self, selector: str) -> str:
        said: str = self.browser.execute_script("return document.querySelector(arguments[0]).innerText", selector)
        return said

    def all(self, selector: str) -> list[Any]:
        found: list[Any] = self.browser.find_elements(By.CSS_SELECTOR, selector)
        return found

    def open(self, number: int) -> None:
        """Clicks a row of the list."""

        def clicked() -> bool:
            self.all("#list tbody tr")[number].click()
            return True

        self.until(clicked, f"row {number} is clicked")

    def ask(self, words: str) -> None:
        box = self.browser.find_element(By.NAME, "q")
        box.send_keys(Keys.CONTROL, "a")
        box.send_keys(words or Keys.DELETE)

    def choose(self, name: str, value: str) -> None:
        Select(self.browser.find_element(By.NAME, name)).select_by_value(value)

    def found(self, text: str) -> None:
        self.until(lambda: text in self.text("#found"), f"#found says {text!r}")

    def errors(self) -> list[Any]:
        """Scripts that failed, and what the page's own policy refused."""
        return [line for line in self.browser.get_log("browser") if line["level"] == "SEVERE"]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return with_tokens(made(tmp_path / "workplace"), 4, ["It ", "is ", "8."], [1.0, 2.0, 0.4])


@pytest.fixture
def page(browser: webdriver.Chrome, folder: Path, tmp_path: Path) -> Page:
    run = RunFolder(folder)
    file = tmp_path / "report.html"
    file.write_text(file_of(run, choose(run, room_for_rollouts(run, 10 << 20))))
    return Page(browser, file.as_uri())


def test_curves_and_tables_are_drawn(page: Page) -> None:
    titles = [one.text for one in page.all("#charts figcaption")]
    assert titles[:2] == ["Reward", "Evaluation reward, with its 95 % interval"]
    assert len(page.all("#charts svg polyline")) == len(titles) + 2 + 6, "seconds are parted"
    assert "waiting for rollouts" in page.text("#charts")
    assert page.all("#charts polygon.band"), "the interval is drawn"
    assert "step 4" in page.text("#facts")
    assert "equal_rewards" in page.text("#ends")
    assert len(page.all("#evaluations tbody tr")) == 3
    assert page.errors() == []


def test_rollouts_are_searched_and_filtered(page: Page) -> None:
    page.found("1 to 27 of 27 rollouts")
    page.ask("rooms taken")
    page.found("of 4 rollouts")
    page.choose("agent", "adder")
    page.found("0 rollouts")
    page.ask("")
    page.choose("outcome", "lost")
    page.found("of 4 rollouts")
    assert "not within 30 s" in page.text("#list tbody")
    page.choose("outcome", "trained")
    page.choose("sort", "reward")
    page.until(lambda: page.text("#list tbody tr td:nth-child(4)") == "1", "the highest reward comes first")
    assert page.errors() == []


def test_an_opened_rollout_shows_what_was_said_with_tool_calls_folded(page: Page) -> None:
    page.ask("rooms")
    page.found("of 4 rollouts")
    page.open(0)
    page.until(lambda: "All rooms are taken" in page.text("#rollout"), "the answer is shown")
    assert "Book a room" in page.text("#rollout")
    call, result = page.all("#rollout details.tool")
    assert (call.text, result.text) == ("call of book_room", "its result")
    call.find_element(By.TAG_NAME, "summary").click()
    page.until(lambda: '"floor": 3' in call.text, "the arguments unfold")
    assert page.errors() == []


def test_an_opened_rollout_shows_where_its_seconds_went(page: Page) -> None:
    page.ask("rooms")
    page.found("of 4 rollouts")
    page.open(0)
    page.until(lambda: page.all("#rollout .timeline rect"), "the timeline is drawn")
    bars = [one.get_attribute("textContent") for one in page.all("#rollout .timeline rect title")]
    first, second = "call 1, 9 tokens, then 3", "call 2, 9 tokens, then 3"
    assert bars == [
        "waiting for a slot: 0.25 s",
        "start: 1 s",
        f"{first}: waiting for vLLM: 0.25 s",
        f"{first}: in vLLM: 1.5 s",
        f"{first}: rest of model calls: 0.25 s",
        "tools: 2.5 s",
        f"{second}: waiting for vLLM: 0.25 s",
        f"{second}: in vLLM: 1.5 s",
        f"{second}: rest of model calls: 0.25 s",
        "verification: 0.5 s",
    ]
    edges = [(one.rect["x"], one.rect["x"] + one.rect["width"]) for one in page.all("#rollout .timeline rect")]
    assert all(end == pytest.approx(begin, abs=1.5) for (_, end), (begin, _) in pairwise(edges)), "one after the other"
    assert "tools 2.5 s" in page.text("#rollout .timeline")
    page.all("#rollout .timeline summary")[0].click()
    page.until(lambda: len(page.all("#rollout .timeline tbody tr")) == 2, "the calls unfold")
    assert page.errors() == []


def test_calls_side_by_side_are_drawn_in_lines_of_their_own(browser: webdriver.Chrome, tmp_path: Path) -> None:
    folder = made(tmp_path / "run", steps=1)
    calls = json.dumps([call(0.0, 1.0, 0.0, 1.0), call(0.5, 1.0, 0.0, 1.0)])
    write(folder / "rollouts" / "step-00000001.parquet", [rollout(1, 0, 0, calls=calls)])
    run = RunFolder(folder)
    (tmp_path / "side.html").write_text(file_of(run, choose(run, 1 << 20)))
    page = Page(browser, (tmp_path / "side.html").as_uri())
    page.choose("outcome", "trained")
    page.found("1 rollouts")
    page.open(0)
    page.until(lambda: page.all("#rollout .timeline rect.h4"), "the timeline is drawn")
    first, second = page.all("#rollout .timeline rect.h4")
    assert second.rect["y"] >= first.rect["y"] + first.rect["height"]
    assert page.errors() == []


def test_agents_are_compared_by_where_seconds_went(page: Page) -> None:
    adder, booker = page.all("#hops tbody tr")
    assert adder.text.startswith("adder 16 1.75 0.25 0 0.25 0.125 0.75 0.125 0 0.25")
    widths = [
        sum(part.rect["width"] for part in row.find_elements(By.CSS_SELECTOR, ".bar span")) for row in (adder, booker)
    ]
    assert widths[0] / widths[1] == pytest.approx(1.75 / 8.25, rel=0.05)
    assert "Where a rollout's seconds go, mean of a step" in page.text("#charts")


def test_tokens_have_the_colour_of_their_ratio(page: Page) -> None:
    page.choose("sort", "newest")
    page.choose("outcome", "trained")
    page.found("of 16 rollouts")
    page.open(0)
    page.until(lambda: page.all("#rollout .tokens span"), "tokens are shown")
    same, more, less = page.all("#rollout .tokens span")
    assert [one.text.strip() for one in (same, more, less)] == ["It", "is", "8."]
    assert same.value_of_css_property("background-color") in ("rgba(0, 0, 0, 0)", "transparent")
    assert more.value_of_css_property("background-color") != less.value_of_css_property("background-color")
    assert more.get_attribute("title") == "ratio 2"
    assert page.errors() == []


def test_nothing_overlaps_beside_an_opened_rollout(page: Page) -> None:
    page.open(0)
    page.until(lambda: page.all("#rollout .message"), "the rollout is open")
    edges = page.browser.execute_script(
        "return [document.querySelector('#list').getBoundingClientRect().right,"
        " document.querySelector('#rollout').getBoundingClientRect().left]"
    )
    assert edges[0] <= edges[1]


def test_keys_alone_are_enough(page: Page) -> None:
    page.all("#list tbody tr")[2].send_keys(Keys.ENTER)
    page.until(lambda: page.all("#rollout .message"), "the rollout is open")


def test_a_script_in_an_answer_is_text(browser: webdriver.Chrome, tmp_path: Path) -> None:
    bad = '<img src=x onerror="document.title=1"><script>document.title=2</script></pre>'
    folder = made(tmp_path / "run", steps=1)
    write(folder / "rollouts" / "step-00000001.parquet", [rollout(1, 0, 0, conversation=conversation(bad, bad))])
    run = RunFolder(folder)
    (tmp_path / "bad.html").write_text(file_of(run, choose(run, 1 << 20)))
    page = Page(browser, (tmp_path / "bad.html").as_uri())
    page.open(-1)
    page.until(lambda: bad in page.text("#rollout"), "it is shown as it is")
    assert browser.title == "run · gymtrain"
    assert page.errors() == []


def test_live_new_steps_come_in_by_themselves(browser: webdriver.Chrome, folder: Path, tmp_path: Path) -> None:
    live, ports = Live(folder, tmp_path / "index.sqlite"), list[int]()
    threading.Thread(target=serve, args=(live, "127.0.0.1", 0, ports.append), daemon=True).start()
    end = time.monotonic() + _SECONDS
    while not ports or live.answer("/api/overview")[0] != 200:
        assert time.monotonic() < end
        time.sleep(0.05)
    page = Page(browser, f"http://127.0.0.1:{ports[0]}/")
    page.found("27 rollouts")
    page.ask("rooms taken")
    page.found("of 4 rollouts")
    write(folder / "rollouts" / "step-00000005.parquet", list(step_rows(5)))
    page.found("of 5 rollouts")
    page.open(0)
    page.until(lambda: "All rooms are taken" in page.text("#rollout"), "the answer is asked for")
    assert page.errors() == []
