"""The page: one file that needs no other and asks no network for anything."""

from __future__ import annotations

import datetime
from pathlib import Path

import jinja2
import plotly.io as pio
from markupsafe import Markup
from plotly.offline import get_plotlyjs

from tools.report.charts import SIDES, charts
from tools.report.figures import Number, Report, Share

NONE = "–"
_CONFIG = {"responsive": True, "displayModeBar": False}


def number(value: Number, unit: str) -> str:
    """A figure in its unit; a dash where there is none."""
    return NONE if value.value is None else plain(value.value, unit)


def plain(value: float | None, unit: str) -> str:
    """A bare value in its unit."""
    if value is None:
        return NONE
    if unit == "%":
        return percent(value)
    if unit == "s":
        return seconds(value)
    if unit == "bytes":
        return f"{value / 2**30:.2f} GiB"
    return f"{value:,.0f}" if unit in ("instances", "money") else f"{value:,.2f}"


def percent(value: float) -> str:
    """As many digits as say something: 0.02 %, 3.2 %, 42 %."""
    return f"{100 * value:.{2 if abs(value) < 0.1 else 1}f} %"


def seconds(value: float) -> str:
    """Milliseconds below a second, minutes from two on."""
    if value < 1:
        return f"{1000 * value:.0f} ms"
    return f"{value:.2f} s" if value < 120 else f"{value / 60:.1f} min"


def moment(text: str) -> str:
    """A point in time, to the minute."""
    return f"{datetime.datetime.fromisoformat(text):%Y-%m-%d %H:%M} UTC"


def share(value: Share) -> str:
    """A share with what it is of, and its interval."""
    if value.value is None or value.low is None or value.high is None:
        return NONE
    return (
        f"{percent(value.value)} ({value.part:,} of n={value.n:,}; "
        f"95 %: {percent(value.low)} to {percent(value.high)})"
    )


def render(report: Report) -> str:
    """The page as HTML."""
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        "number": number,
        "plain": plain,
        "share": share,
        "seconds": seconds,
        "moment": moment,
    }
    plots = {
        name: Markup(  # noqa: S704 - plotly escapes its JSON, and names in it are escaped
            pio.to_html(
                figure,
                full_html=False,
                include_plotlyjs=False,
                config=_CONFIG,
                div_id=f"plot-{name}",
                default_width="100%",
                default_height=f"{figure.layout.height}px",
            )
        )
        for name, figure in charts(report).items()
    }
    return environment.get_template("page.html.j2").render(
        report=report,
        plots=plots,
        colours=SIDES,
        script=Markup(get_plotlyjs()),  # noqa: S704 - the package's own
    )
