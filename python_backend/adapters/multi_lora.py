"""``multi_lora.json`` of the official backend: names of adapters and the folders they lie in.

Its names are free there. Here access, metrics and storage go by lora_id, so a name that is none
must be an alias of one; it is then served under both. They are fixed for a start: a folder of the
same name in the adapter root, there before or later, changes nothing and is told in ``list``.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from python_backend import strict_json
from python_backend.adapters import naming
from python_backend.settings import SettingsError

MULTI_LORA_JSON = "multi_lora.json"


def load(path: Path, aliases: Mapping[str, str], root: Path) -> dict[str, Path]:
    """The folder of each lora_id that ``path`` names; empty if there is no such file.

    Args:
        aliases: ``aliases`` of ``serving.yaml``.
        root: the adapter root; what lies there under the same name is not served (see
            ``librarian``), and a folder of the root that is named here is the root's.

    Raises:
        SettingsError: the file cannot be used; the text names the key and the cure.
    """
    try:
        body = strict_json.loads_object(path.read_bytes())
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise SettingsError(f"{path}: cannot be read: {error.strerror}") from None
    except strict_json.StrictJsonError as error:
        raise SettingsError(f"{path}: {error}") from None
    found: dict[str, Path] = {}
    for name, folder in body.items():
        key = f"{path}: {strict_json.safe_name(name)}"
        if not isinstance(folder, str) or not folder:
            raise SettingsError(f"{key}: must be the path of the adapter's folder")
        lora_id = name if naming.is_lora_id(name) else aliases.get(name)
        if lora_id is None:
            raise SettingsError(
                f"{key}: not a lora_id (department_business_version, such as fin_risk_v2); "
                "rename it, or map the name to a lora_id under `aliases` in serving.yaml"
            )
        if lora_id in found:
            raise SettingsError(f"{key}: {lora_id} is named twice; remove one of the two")
        found[lora_id] = _absolute(folder)
    return {lora_id: path for lora_id, path in found.items() if not _same(path, root / lora_id)}


def _same(one: Path, other: Path) -> bool:
    try:
        return one.samefile(other)
    except OSError:
        return False


def _absolute(folder: str) -> Path:
    """Relative to the server's working directory, as in the official backend."""
    # Triton's stub believes that file names are ASCII; as bytes of UTF-8 any name passes.
    return Path(os.fsdecode(folder.encode("utf-8"))).absolute()
