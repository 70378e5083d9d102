"""The one place that knows how a tritonserver is run here. Standard library only."""

from __future__ import annotations

import os
import shutil
import sys
import sysconfig
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tools import layout

#: Where NVIDIA's images keep it.
IMAGE_BINARY = Path("/opt/tritonserver/bin/tritonserver")


class ServerNotFound(Exception):
    """There is no tritonserver to run; the message names the cure."""


@dataclass(frozen=True)
class Launch:
    """A tritonserver, ready to be started."""

    binary: Path
    #: Environment of the process: whole, not a difference.
    env: Mapping[str, str]
    #: Arguments every start needs; the caller adds its own.
    args: tuple[str, ...]

    def command(self, arguments: Sequence[str] = ()) -> list[str]:
        """The command line with the caller's ``arguments`` behind."""
        return [str(self.binary), *self.args, *arguments]


def installed(path: str | None = None) -> Path | None:
    """A tritonserver that came with the system: on ``path`` (default ``$PATH``) or as in the
    NGC image; None when there is none."""
    found = shutil.which("tritonserver", path=path)
    if found:
        return Path(found).resolve()
    return IMAGE_BINARY if IMAGE_BINARY.is_file() else None


def site_packages() -> Path:
    """Where the packages of the running Python lie."""
    return Path(sysconfig.get_path("purelib"))


def bundled(packages: Path) -> Path:
    """The binary inside the nvidia-pytriton wheel, whether it is there or not."""
    return packages / "pytriton" / "tritonserver" / "bin" / "tritonserver"


def library_folders(packages: Path, libpython: Sequence[Path]) -> list[Path]:
    """Where the wheel's server and stub find their shared libraries."""
    return [packages / "nvidia_pytriton.libs", *libpython]


def locate(
    environ: Mapping[str, str] | None = None, extra_env: Mapping[str, str] | None = None
) -> Launch:
    """How to start the tritonserver of this machine with the project's code.

    Args:
        environ: environment to start from, default the current one.
        extra_env: variables to add, such as ``LORA_SERVING_CONFIG``.

    Raises:
        ServerNotFound: none is installed and none was assembled.
    """
    env = dict(os.environ if environ is None else environ)
    packages = site_packages()
    binary = installed(env.get("PATH"))
    if binary is not None:
        backends = binary.parent.parent / "backends"
        libraries: list[Path] = []
    else:
        binary, backends = bundled(packages), layout.BACKENDS
        if not (binary.is_file() and (backends / "python").is_dir()):
            raise ServerNotFound(
                "no tritonserver: none on PATH, none at /opt/tritonserver, none assembled under "
                ".cache/triton; run: make setup"
            )
        libpython = [Path(sysconfig.get_config_var("LIBDIR") or "/usr/lib"), layout.LIBPYTHON]
        libraries = library_folders(packages, libpython)
    _prepend(env, "LD_LIBRARY_PATH", libraries)
    # The stub embeds a Python that knows nothing of our venv: both folders must be named. Its
    # sys.executable, which vLLM's processes start from, is the first python on PATH.
    _prepend(env, "PYTHONPATH", [layout.ROOT, packages])
    _prepend(env, "PATH", [Path(sys.executable).parent])
    env.update(extra_env or {})
    return Launch(binary, env, (f"--backend-directory={backends}",))


def _prepend(env: dict[str, str], name: str, folders: list[Path]) -> None:
    parts = [str(folder) for folder in folders] + [env.get(name, "")]
    joined = os.pathsep.join(part for part in parts if part)
    if joined:
        env[name] = joined
