"""Fills the templates of `templates/`; an unknown hole is an error, nothing is escaped."""

from __future__ import annotations

from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined


def render(template: str, **values: Any) -> str:
    """The text of `template` (such as `cpu/forward.cpp.jinja`) with its holes filled."""
    return _environment().get_template(template).render(**values)


@cache
def _environment() -> Environment:
    return Environment(
        loader=FileSystemLoader(_folder()),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )


def _folder() -> Path:
    """Templates are the package `fwgen.templates` once installed, a folder beside it in a clone."""
    spec = find_spec("fwgen.templates")
    if spec is not None and spec.origin is not None:
        return Path(spec.origin).parent
    return Path(__file__).resolve().parents[2] / "templates"


def read_template(name: str) -> str:
    """The text of a file of `templates/` that has no holes."""
    return (_folder() / name).read_text(encoding="utf-8")
