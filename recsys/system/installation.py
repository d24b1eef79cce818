"""The name that pip knows this package by, and how its extras are installed.

It is not in a public registry, where `recsys` is another project's package, so error messages
say how to install from a clone. docs/install.md has more.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from recsys.errors import RecsysError

VERSION = "0.2.0"
NAME = "sharded-recsys"
"""The distribution; the package that is imported and the command are `recsys`."""

SYNC = "uv sync --all-extras"
"""Installs every extra in the virtual environment of a clone."""
INSTALL_TFX = "python -m recsys.system.installation | pip install --no-deps -r /dev/stdin"
"""Installs the TFX packages beside a wheel that was installed with its extra `all`."""

# The others need the overrides of pyproject.toml, which pip doesn't read.
_BY_PIP = ("serve", "tune", "ray", "delta", "iceberg", "sql", "kafka")
_OF_EVERY_PYTHON = {
    "tfx": "1.21.0",
    "ml-pipelines-sdk": "1.21.0",
    "tensorflow-transform": "1.21.0",
    "tensorflow-model-analysis": "0.52.0",
}
WIDE_SET = {"ml-metadata": "1.17.1", "tensorflow-data-validation": "1.16.1", "tfx-bsl": "1.16.1"}
"""The releases for Python 3.11, whose wheels run on glibc 2.34 and up."""
EXACT_SET = {"ml-metadata": "1.21.0", "tensorflow-data-validation": "1.21.0", "tfx-bsl": "1.21.0"}
"""Those for Python 3.12, as TFX 1.21 pins them; their wheels need glibc 2.39."""


def tfx_requirements() -> list[str]:
    """Returns the TFX packages that a run needs, for `pip install --no-deps`."""
    versions = _OF_EVERY_PYTHON | (WIDE_SET if sys.version_info < (3, 12) else EXACT_SET)
    return [f"{name}=={version}" for name, version in versions.items()]


def install_extra(extra: str) -> str:
    """Returns the sentence that helps where packages of `extra` are missing."""
    if not _is_clone():
        tfx = "" if extra in _BY_PIP else f", then: {INSTALL_TFX}"
        return f"Install the wheel with its extras: pip install 'WHEEL[all]'{tfx}."
    by_pip = f", or: pip install '{NAME}[{extra}] @ file:///path/to/clone'"
    return f"Install the extra {extra}, in your clone: {SYNC}{by_pip if extra in _BY_PIP else ''}."


@contextmanager
def extra_needed(
    extra: str, code: str, rule: str, error: type[RecsysError] = RecsysError
) -> Iterator[None]:
    """Replaces an ImportError inside the context by an error that names the extra to install."""
    try:
        yield
    except ImportError as missing:
        raise error(code, rule, install_extra(extra), missing.name or str(missing)) from None


def _is_clone() -> bool:
    return (Path(__file__).resolve().parents[2] / "uvw").exists()


if __name__ == "__main__":
    print("\n".join(tfx_requirements()))
