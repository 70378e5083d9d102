"""``messages``: a conversation, rendered to a prompt by the base model's own chat template."""

from __future__ import annotations

import dataclasses
import datetime
import functools
import json
from pathlib import Path
from typing import Any, Literal

import jinja2
import jinja2.ext
import jinja2.nodes
import jinja2.parser
from jinja2.sandbox import ImmutableSandboxedEnvironment
from pydantic import BaseModel, ConfigDict, TypeAdapter, ValidationError

from ensemble.strict_json import parse_json
from python_backend.errors import InvalidArgument
from python_backend.strict_json import safe_name

FIELD = "messages"
_NO_TEMPLATE = "the base model has no chat template; send text_input"
_TOKENS = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token")


class _Strict(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class _TextPart(_Strict):
    type: Literal["text"]
    text: str


class _Message(_Strict):
    role: Literal["system", "user", "assistant", "tool"]
    content: str | list[_TextPart]

    @property
    def joined(self) -> str:
        if isinstance(self.content, str):
            return self.content
        return "\n".join(part.text for part in self.content)  # as vLLM's own chat endpoint does


_MESSAGES = TypeAdapter(list[_Message])


def parse(data: bytes, *, max_bytes: int) -> list[dict[str, str]]:
    """The conversation in ``data``, a JSON list of at least one ``{role, content}``.

    Raises:
        InvalidArgument: it is not; names the message and the key at fault.
    """
    value = parse_json(FIELD, data, max_bytes=max_bytes)
    try:
        messages = _MESSAGES.validate_python(value)
    except ValidationError as error:
        problem = error.errors(include_url=False, include_input=False, include_context=False)[0]
        where = ".".join(safe_name(part).strip("'") for part in problem["loc"][:2])
        what = problem["msg"][:1].lower() + problem["msg"][1:]
        raise InvalidArgument(f"{FIELD}.{where}" if where else FIELD, what) from None
    if not messages:
        raise InvalidArgument(FIELD, "must hold at least one message")
    return [{"role": message.role, "content": message.joined} for message in messages]


@dataclasses.dataclass(frozen=True)
class ChatTemplate:
    """A compiled chat template with the special tokens it may name."""

    template: jinja2.Template
    tokens: dict[str, str]

    def render(self, messages: list[dict[str, str]]) -> str:
        """The prompt for ``messages``, ending where the assistant's answer begins.

        Raises:
            InvalidArgument: the template refuses the messages; what it says stays here.
        """
        try:
            return self.template.render(
                messages=messages,
                tools=None,
                documents=None,
                add_generation_prompt=True,
                **self.tokens,
            )
        except Exception:  # a template can raise anything, and none of it is the caller's to read
            raise InvalidArgument(
                FIELD, "the base model's chat template does not accept this conversation"
            ) from None


def render(messages: list[dict[str, str]], model_dir: str) -> str:
    """The prompt for ``messages`` under the chat template of the model in ``model_dir``.

    Raises:
        InvalidArgument: there is no usable template, or it refuses the messages.
    """
    template = load(model_dir)
    if template is None:
        raise InvalidArgument(FIELD, _NO_TEMPLATE)
    return template.render(messages)


@functools.lru_cache(maxsize=8)
def load(model_dir: str) -> ChatTemplate | None:
    """The chat template of the model in ``model_dir``, or None if it has none that compiles."""
    folder = Path(model_dir)
    config = _json_file(folder / "tokenizer_config.json")
    source = (
        _text_file(folder / "chat_template.jinja")
        or _source(config.get("chat_template"))
        or _source(_json_file(folder / "chat_template.json").get("chat_template"))
    )
    if source is None:
        return None
    tokens = {name: token for name in _TOKENS if (token := _token(config.get(name))) is not None}
    return compile_template(source, tokens)


def compile_template(source: str, tokens: dict[str, str]) -> ChatTemplate | None:
    """``source`` compiled in the environment that transformers gives chat templates."""
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, jinja2.ext.loopcontrols]
    )
    environment.filters["tojson"] = _tojson
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = _strftime_now
    try:
        return ChatTemplate(environment.from_string(source), tokens)
    except jinja2.TemplateError:
        return None


class _Generation(jinja2.ext.Extension):
    """``{% generation %}`` marks the assistant's words for training; here it changes nothing."""

    tags = {"generation"}  # noqa: RUF012 (jinja2 declares it as an instance variable)

    def parse(self, parser: jinja2.parser.Parser) -> list[jinja2.nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _tojson(value: Any, ensure_ascii: bool = False, **options: Any) -> str:
    return json.dumps(value, ensure_ascii=ensure_ascii, **options)


def _raise_exception(message: str) -> None:
    raise jinja2.TemplateError(message)


def _strftime_now(pattern: str) -> str:
    return datetime.datetime.now().strftime(pattern)  # local time, as transformers


def _source(value: Any) -> str | None:
    """A template's text from a string, or from a list of ``{name, template}``: the default one."""
    if isinstance(value, list):
        named = {item.get("name"): item.get("template") for item in value if isinstance(item, dict)}
        value = named.get("default", next(iter(named.values())) if len(named) == 1 else None)
    return value if isinstance(value, str) and value else None


def _token(value: Any) -> str | None:
    """A special token's text, written as a string or as ``{"content": …}``."""
    content = value.get("content") if isinstance(value, dict) else value
    return content if isinstance(content, str) else None


def _text_file(path: Path) -> str | None:
    try:
        return path.read_text("utf-8")
    except (OSError, UnicodeDecodeError):
        return None


def _json_file(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(_text_file(path) or "{}")
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}
