"""A prompt's tokens, and whose cache they may be found in."""

from __future__ import annotations

import hashlib
import hmac

from python_backend.engine.base import Version
from python_backend.errors import InvalidArgument


def room(tokens: int, max_model_len: int) -> int:
    """How many tokens an answer to a prompt of ``tokens`` can have.

    Raises:
        InvalidArgument: the prompt is empty, or leaves no room for an answer.
    """
    limit = max_model_len - 1
    if tokens == 0:
        raise InvalidArgument("text_input", "the prompt is empty")
    if tokens > limit:
        raise InvalidArgument(
            "text_input", f"the prompt has {tokens} tokens; the model takes at most {limit}"
        )
    return max_model_len - tokens


def cache_salt(key: bytes, department: str, version: Version | None) -> str:
    """What separates the prefix caches of departments, and of versions.

    A secret per department: nobody can learn from cached tokens or timing whether another
    department has sent the same prompt. The id, since vLLM's own key has the name alone: what a
    failed version left behind must not answer for the same content loaded anew.

    Args:
        key: the server's ticket key.
    """
    int_id = version.int_id if version else 0
    label = b"prefix-cache\0%d\0" % int_id + department.encode()
    return hmac.new(key, label, hashlib.sha256).hexdigest()
