from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ensemble import chat
from python_backend.errors import InvalidArgument

DEMO = Path(__file__).parents[3] / ".demo" / "model"
TALK = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hé & <b>"}]


def encode(value: Any) -> bytes:
    return json.dumps(value).encode()


def parse(value: Any) -> list[dict[str, str]]:
    data = value if isinstance(value, bytes) else encode(value)
    return chat.parse(data, max_bytes=4096)


def test_parse_joins_text_parts() -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    assert parse([{"role": "user", "content": parts}]) == [{"role": "user", "content": "a\nb"}]
    assert parse(TALK) == TALK


@pytest.mark.parametrize(
    ("value", "says"),
    [
        ([], "messages: must hold at least one message."),
        ({}, "messages: input should be a valid list."),
        ("hi", "messages: input should be a valid list."),
        (["hi"], "messages.0: "),
        ([{"role": "user"}], "messages.0.content: field required."),
        ([{"content": "x"}], "messages.0.role: field required."),
        ([{"role": "root", "content": "x"}], "messages.0.role: input should be 'system', "),
        ([{"role": "user", "content": None}], "messages.0.content: "),
        ([{"role": "user", "content": 7}], "messages.0.content: "),
        ([TALK[0], {"role": "user", "content": "x", "\n": 1}], "messages.1.\\n: extra inputs"),
        ([{"role": "user", "content": [{"type": "image", "text": "x"}]}], "messages.0.content: "),
        (b"[", "messages: not valid JSON at character 1."),
        (b"\xff", "messages: not UTF-8."),
        (b'[{"role": "user", "role": "user", "content": "x"}]', "messages: the key 'role' is"),
        (b'[{"role": "user", "content": "\\udc00"}]', "messages: holds a lone surrogate"),
        (b" " * 4097, "messages: longer than 4096 bytes."),
        (b"[" * 4000, "messages: nested deeper than 84 levels."),
    ],
)
def test_bad_messages(value: Any, says: str) -> None:
    with pytest.raises(InvalidArgument) as error:
        parse(value)
    assert error.value.message.startswith(f"invalid_argument: {says}")
    assert error.value.message.isascii()


def test_render(model_dir: Path) -> None:
    assert chat.render(TALK, str(model_dir)) == (
        "<s><system>Be brief.</>\n<user>Hé & <b></>\n<assistant>"
    )
    assert chat.load(str(model_dir)) is chat.load(str(model_dir))


def test_what_a_template_raises_stays_here(model_dir: Path) -> None:
    with pytest.raises(InvalidArgument) as error:
        chat.render([{"role": "tool", "content": "x"}], str(model_dir))
    assert error.value.message == (
        "invalid_argument: messages: the base model's chat template does not accept this "
        "conversation."
    )


@pytest.mark.parametrize(
    "files",
    [
        {"chat_template.jinja": "J{{ messages[0].content }}"},
        {"chat_template.json": json.dumps({"chat_template": "J{{ messages[0].content }}"})},
        {
            "tokenizer_config.json": json.dumps(
                {
                    "chat_template": [
                        {"name": "tool_use", "template": "T"},
                        {"name": "default", "template": "J{{ messages[0].content }}"},
                    ]
                }
            )
        },
        {
            "tokenizer_config.json": json.dumps({"chat_template": "other"}),
            "chat_template.jinja": "J{{ messages[0].content }}",
        },
    ],
)
def test_where_a_template_may_lie(tmp_path: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    assert chat.render([{"role": "user", "content": "x"}], str(tmp_path)) == "Jx"


@pytest.mark.parametrize(
    "files",
    [
        {},
        {"tokenizer_config.json": "{"},
        {"tokenizer_config.json": "[]"},
        {"tokenizer_config.json": '{"chat_template": null}'},
        {"chat_template.jinja": "{% for %}"},
    ],
)
def test_no_template(tmp_path: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    with pytest.raises(InvalidArgument) as error:
        chat.render(TALK, str(tmp_path))
    assert error.value.message == (
        "invalid_argument: messages: the base model has no chat template; send text_input."
    )


#: Uses what transformers gives templates: loop controls, tojson, generation, blocks trimmed.
RICH = """
{%- for m in messages %}
    {% if loop.index > 2 %}{% break %}{% endif %}
    {% if m.role == 'assistant' %}{% generation %}[{{ m.content }}]{% endgeneration %}{% else %}
{{ m | tojson }}{% endif %}
{% endfor %}
{{ eos_token }}{{ strftime_now('%%') }}
"""


def test_the_environment_is_that_of_transformers() -> None:
    utils = pytest.importorskip("transformers.utils.chat_template_utils")
    talk = [*TALK, {"role": "assistant", "content": "no"}]
    for messages in (talk, talk[1:]):
        expected, _ = utils.render_jinja_template(
            [messages], chat_template=RICH, add_generation_prompt=True, eos_token="</s>"
        )
        template = chat.compile_template(RICH, {"eos_token": "</s>"})
        assert template is not None
        assert [template.render(messages)] == expected


def test_a_template_cannot_reach_out() -> None:
    template = chat.compile_template("{{ ''.__class__.__mro__ }}{{ messages.append(1) }}", {})
    assert template is not None
    with pytest.raises(InvalidArgument):
        template.render(list(TALK))


@pytest.mark.skipif(not DEMO.is_dir(), reason="the demo model has not been made")
def test_the_demo_model_renders_as_transformers_does() -> None:
    transformers = pytest.importorskip("transformers")
    tokenizer = transformers.AutoTokenizer.from_pretrained(DEMO)
    for messages in (TALK, TALK[1:], [*TALK, {"role": "assistant", "content": "ok"}, TALK[1]]):
        expected = tokenizer.apply_chat_template(
            messages, tokenize=False, add_generation_prompt=True
        )
        assert chat.render(messages, str(DEMO)) == expected
