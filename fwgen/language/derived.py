"""Derived sizes as a person would write them: `F = 2*K*nu`, with the constants by name."""

from __future__ import annotations

from fwgen.errors import RuleError
from fwgen.ir.dims import Dim
from fwgen.language.rule import Rule, load_rule


def derived_dims(rule: Rule) -> dict[str, Dim]:
    """Sizes that were inferred, by name.

    Lowering puts constants in as numbers. A constant that a size follows linearly, as two larger
    values show, comes back as a name; with any doubt the size stays as it was inferred.
    """
    found = dict(rule.step.dims)
    plain = [n for n, value in rule.constants.items() if isinstance(value, int) and value > 0]
    for name, dim in found.items():
        shown = dim
        for constant in plain:
            shown = _named(rule, name, shown, dim, constant)
        found[name] = shown if _holds(rule, name, shown, plain) else dim
    return found


def _named(rule: Rule, name: str, shown: Dim, dim: Dim, constant: str) -> Dim:
    """The size with one constant by name, if it is linear in it."""
    value = int(rule.constants[constant])
    once, twice = (_at(rule, name, {constant: value + step}) for step in (1, 2))
    if once is None or twice is None or once == dim or twice - once != once - dim:
        return shown
    return shown + (once - dim) * (Dim.of(constant) - value)


def _at(rule: Rule, name: str, constants: dict[str, int]) -> Dim | None:
    """The inferred size with other constants."""
    try:
        return dict(load_rule(rule, set=constants).step.dims).get(name)
    except RuleError:
        return None


def _holds(rule: Rule, name: str, shown: Dim, constants: list[str]) -> bool:
    """Whether the size with names is right where every constant is larger."""
    used = [c for c in constants if c in shown.names]
    if not used:
        return True
    larger = {c: int(rule.constants[c]) + 1 for c in used}
    expected = shown.substitute({c: Dim.of(value) for c, value in larger.items()})
    return _at(rule, name, larger) == expected
