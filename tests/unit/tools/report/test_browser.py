"""The page in a real browser, at the width of a screen, of a phone and on paper."""

from __future__ import annotations

import re
import struct
import subprocess
from pathlib import Path

import pytest

from tests import debian
from tests.unit.tools.report.test_report_command import call, pair

PLOTS = {
    *("ttft", "total", "curve", "answers", "memory", "fragmentation", "refusals", "breakers"),
}
#: Name and size of a window, pixels.
WINDOWS = {"desktop": (1280, 2000), "phone": (390, 844)}


@pytest.fixture(scope="module")
def browser() -> Path:
    return debian.program("chromium-headless-shell", "chromium-headless-shell")


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("page")
    done = call(*pair(folder), "--out", folder, "--goal", 9, "--price-per-hour", 2)
    assert done.exit_code == 0, done.output
    return folder / "report.html"


def browse(browser: Path, page: Path, size: tuple[int, int], *flags: str) -> tuple[str, list[str]]:
    """What it printed, and what the page said on its console."""
    width, height = size
    command = [str(browser), "--no-sandbox", "--disable-gpu", "--enable-logging=stderr"]
    command += [f"--window-size={width},{height}", "--hide-scrollbars", *flags, page.as_uri()]
    command += [f"--user-data-dir={page.parent / 'profile'}"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    return done.stdout, re.findall(r"CONSOLE:\d+\] (.*)", done.stderr)


@pytest.mark.parametrize("window", WINDOWS)
def test_every_plot_is_drawn_and_nothing_complains(browser: Path, page: Path, window: str) -> None:
    dom, console = browse(browser, page, WINDOWS[window], "--dump-dom")
    assert console == []
    drawn = re.findall(r'id="plot-(\w+)"[^>]*class="[^"]*js-plotly-plot', dom)
    assert set(drawn) == PLOTS
    # Lines, bars: what was measured, not only axes.
    assert dom.count('class="point"') >= 10
    assert dom.count('class="js-line"') >= 4


MEASURE = """<script>addEventListener('load', () => {
  const wide = [...document.querySelectorAll('body *')].filter(
    e => e.getBoundingClientRect().right > innerWidth + 1 && !e.closest('.scroll, svg'));
  const all = document.documentElement.scrollWidth;
  document.title = JSON.stringify([innerWidth, all, wide.map(e => e.outerHTML.slice(0, 60))]);
});</script></body>"""


@pytest.mark.parametrize("window", WINDOWS)
def test_nothing_is_wider_than_the_screen(browser: Path, page: Path, window: str) -> None:
    measured = page.with_name(f"{window}.html")
    measured.write_text(page.read_text("utf-8").replace("</body>", MEASURE), "utf-8")
    dom, _ = browse(browser, measured, WINDOWS[window], "--dump-dom")
    width = WINDOWS[window][0]
    assert re.findall(r"<title>(.*?)</title>", dom)[0] == f"[{width},{width},[]]"


@pytest.mark.parametrize("window", WINDOWS)
def test_a_picture_of_it(browser: Path, page: Path, window: str, tmp_path: Path) -> None:
    picture = tmp_path / "page.png"
    browse(browser, page, WINDOWS[window], f"--screenshot={picture}")
    head = picture.read_bytes()[:24]
    assert head[:8] == b"\x89PNG\r\n\x1a\n"
    assert struct.unpack(">II", head[16:]) == WINDOWS[window]


def test_it_can_be_printed(browser: Path, page: Path, tmp_path: Path) -> None:
    paper = tmp_path / "page.pdf"
    _, console = browse(browser, page, WINDOWS["desktop"], f"--print-to-pdf={paper}")
    assert console == []
    assert paper.read_bytes().startswith(b"%PDF-")
