"""Arguments of the Python functions that take rules: a clear error for every wrong one."""

from __future__ import annotations

import inspect
import reprlib
from collections.abc import Mapping
from typing import Any

from fwgen.errors import ArgumentError, CallError
from fwgen.language.names import did_you_mean

CALL = ("params", "buffers", "initial_state", "output_final_state", "cu_seqlens", "position")
OPTIONS = ("form", "backend", "chunk_size")
"""What the compiled rule takes beside `CALL`, not the compiler."""


def by_name(argument: str, given: object, example: str) -> dict[str, Any]:
    """An argument that is a dict by name; raises ArgumentError for anything else."""
    if given is None:
        return {}
    if not isinstance(given, Mapping):
        wanted = f"a dict by name, such as {example}"
        raise ArgumentError(f"{argument}: expected {wanted}, found {reprlib.repr(given)}")
    for name in given:
        if not isinstance(name, str):
            raise ArgumentError(f"{argument}: expected names as keys, found {reprlib.repr(name)}")
    return dict(given)


def replacements(maps: object) -> dict[str, str]:
    """The argument `maps`: formulas by name."""
    found = by_name("maps", maps, "{'phi': 'elu(x) + 1'}")
    for name, body in found.items():
        if not isinstance(body, str):
            wanted = "a formula as text, such as 'elu(x) + 1'"
            raise ArgumentError(f"maps[{name!r}]: expected {wanted}, found {reprlib.repr(body)}")
    return found


def no_rule(source: object) -> CallError:
    """The fault of a thing that no rule can be read from."""
    what = "a rule is a path, a name, a Rule or a decorated function"
    if inspect.isfunction(source):
        above = "put `@fwgen.rule(inputs={…}, state={…})` above it"
        return CallError(f"the function `{source.__name__}` is not decorated as a rule: {above}")
    if hasattr(getattr(source, "rule", None), "to_yaml"):
        return CallError(f"{reprlib.repr(source)} is compiled already; its `.rule` is the Rule")
    return CallError(f"{what}, not {reprlib.repr(source)}")


def unknown_keyword(
    function: str, name: str, value: object, constants: Mapping[str, Any], maps: Mapping[str, Any]
) -> CallError:
    """The fault of a keyword that `function` lacks; the rule's constants and maps are known."""
    if name in constants:
        hint = f"constants are replaced by `set={{{name!r}: {reprlib.repr(value)}}}`"
    elif name in maps:
        hint = f"feature maps are replaced by `maps={{{name!r}: {reprlib.repr(value)}}}`"
    elif name in CALL + OPTIONS:
        hint = f"the compiled rule takes it: `op = fwgen.compile(…)`, `op(…, {name}=…)`"
    else:
        hint = did_you_mean(name, ("set", "maps", *constants, *maps)) or (
            "after the rule it takes `set={…}` for constants and `maps={…}` for feature maps"
        )
    return CallError(f"`fwgen.{function}` has no argument `{name}`\n  hint: {hint}")
