"""What fleet.yaml may not say, and that names and shares are what they should be."""

from __future__ import annotations

import fnmatch
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from tools.__main__ import app
from tools.render import names
from tools.render.fleet import Server
from tools.render.nginx import shares

GOOD = """\
groups:
  finance:
    adapters: ["fin_*"]
    aliases: [risk_ctrl]
    servers:
      - {host: 10.0.0.1}
      - {host: 10.0.0.2}
  service:
    adapters: ["svc_*", "qa_*"]
    servers: [{host: triton-service.local, http: 9000, grpc: 9001}]
gateway:
  server_name: lora.example.com
  tls: {certificate: /etc/nginx/lora.pem, key: /etc/nginx/lora.key}
  default_group: service
  rates:
    departments: {fin: {per_minute: 1200}}
"""


def render(folder: Path, text: str) -> tuple[int, str, Path]:
    (folder / "fleet.yaml").write_text(text)
    out = folder / "nginx.conf"
    flags = ["--fleet", str(folder / "fleet.yaml"), "--out", str(out)]
    done = CliRunner().invoke(app, ["render", "nginx", *flags])
    return done.exit_code, done.output, out


@pytest.mark.parametrize(
    ("old", "new", "line", "says"),
    [
        (
            '["fin_*"]',
            '["fin_*"]\n    colour: red',
            4,
            "groups.finance.colour: unknown key: remove",
        ),
        ('["fin_*"]', "[]", 3, "groups.finance.adapters: has no members: list at least one"),
        ("[{host: triton-service.local, http: 9000, grpc: 9001}]", "[]", 10, "has no members"),
        ('"qa_*"', '"f?n_r*"', 9, "'f?n_r*' and 'fin_*' of finance can match one adapter"),
        (
            '"qa_*"]',
            '"qa_*"]\n    aliases: [risk_ctrl]',
            10,
            "'risk_ctrl' is an alias of finance too; let one group have it",
        ),
        ("{host: 10.0.0.2}", "{host: 10.0.0.1}", 7, "stands here twice; remove one"),
        ("10.0.0.2", '"10.0.0.2; }"', 7, "'10.0.0.2; }' is no host name or address"),
        ("default_group: service", "default_group: sales", 14, "there are finance, service"),
        ("{fin: {", "{hr: {", 16, "no group has an adapter of this department"),
        ("per_minute: 1200", "per_minute: none", 16, "per_minute: Input should be a valid integer"),
        ("  tls: {", "  tsl: {", 11, "gateway.tls: write this key"),
        ("  default_group:", "  http_port: 8444\n  default_group:", 11, "give each its own port"),
        ("  service:", "  finance:", 2, "the key 'finance' is given twice; correct it"),
        ("groups:", "groups: [", 3, "correct it"),
    ],
)
def test_it_stops_with_the_line_and_the_cure(
    tmp_path: Path, old: str, new: str, line: int, says: str
) -> None:
    assert old in GOOD
    code, output, out = render(tmp_path, GOOD.replace(old, new, 1))
    assert code == 2
    assert f"fleet.yaml:{line}: " in output
    assert says in output
    assert not out.exists()


def test_it_is_the_same_each_time_and_replaced_as_a_whole(tmp_path: Path) -> None:
    code, _, out = render(tmp_path, GOOD)
    assert code == 0
    text = out.read_text()
    assert text.endswith("}\n") and out.stat().st_mode & 0o777 == 0o644
    assert render(tmp_path, GOOD)[0] == 0
    assert out.read_text() == text
    code, _, _ = render(tmp_path, GOOD.replace("fin_*", "FIN"))
    assert code == 2
    assert out.read_text() == text
    assert sorted(path.name for path in tmp_path.iterdir()) == ["fleet.yaml", "nginx.conf"]


def test_a_file_that_cannot_be_written_or_read(tmp_path: Path) -> None:
    (tmp_path / "fleet.yaml").write_text(GOOD)
    for flags, says in (
        (["--fleet", str(tmp_path / "none.yaml")], "cannot be read"),
        (
            ["--fleet", str(tmp_path / "fleet.yaml"), "--out", str(tmp_path / "no" / "f")],
            "choose another --out",
        ),
    ):
        done = CliRunner().invoke(app, ["render", "nginx", *flags])
        assert done.exit_code == 2
        assert says in done.output


_GLOBS = st.text("ab_*?[]!", min_size=1, max_size=6)
_TEXTS = st.text("ab_", max_size=6)


@given(_GLOBS, _GLOBS, _TEXTS)
def test_globs_that_share_a_name_overlap(one: str, other: str, text: str) -> None:
    if fnmatch.fnmatchcase(text, one) and fnmatch.fnmatchcase(text, other):
        assert names.overlap(one, other)


@pytest.mark.parametrize(
    ("one", "other", "shared"),
    [
        ("fin_*", "svc_*", False),
        ("fin_*", "fin_risk_v1", True),
        ("*_v1", "fin_*", True),
        ("*_v1", "*_v2", False),
        ("f?n_*", "fin_*", True),
        ("m_[0-4]*", "m_[5-9]*", False),
        ("m_[!a]", "m_a", False),
        ("*", "*", True),
    ],
)
def test_overlaps(one: str, other: str, shared: bool) -> None:
    assert names.overlap(one, other) is names.overlap(other, one) is shared


def servers(count: int) -> list[Server]:
    return [Server(host=f"10.0.0.{at}") for at in range(count)]


def parts(found: list[tuple[str, int]]) -> list[int]:
    """The server of each half percent."""
    homes: list[int] = []
    for percent, at in found:
        left = 200 - len(homes)
        homes += [at] * (left if percent == "*" else round(float(percent[:-1]) * 2))
    assert len(homes) == 200
    return homes


@pytest.mark.parametrize("count", [2, 3, 8])
def test_a_new_server_takes_its_share_and_moves_nothing_else(count: int) -> None:
    before, after = parts(shares(servers(count))), parts(shares(servers(count + 1)))
    moved = [new for old, new in zip(before, after, strict=True) if new != old]
    assert set(moved) == {count}
    for homes, members in ((before, count), (after, count + 1)):
        fair = 200 / members
        assert all(fair / 2 < homes.count(at) < fair * 2 for at in range(members))
