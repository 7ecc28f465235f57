"""Vector and scalar states: their update as parts over one axis."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from fwgen.algebra.affine import Domain, Part, collapsed, renamed
from fwgen.ir.nodes import Load, Statement
from fwgen.ir.walk import loads, reads


def small_parts(
    statements: Sequence[Statement], old: str, statement: Statement
) -> list[Part] | None:
    """The update of a vector or scalar state as parts over its axis, None where not affine.

    `statements` are those before the update. Local arrays that are affine in the state, element by
    element, are expanded; other arrays that depend on it stay what they are.
    """
    tainted = {old}
    count = Counter(s.target for s in statements)
    versions: dict[str, tuple[Statement, list[Part]]] = {}

    def resolve(load: Load) -> Sequence[Part] | None:
        if any(index.variable is None for index in load.index):
            return None
        if load.array == old:
            return [Part(load)]
        definition, parts = versions[load.array]
        places = dict(zip(definition.free, load.index, strict=True))
        return [renamed(part, places) for part in parts]

    def affine(one: Statement) -> list[Part] | None:
        domain = Domain({old, *versions}, resolve, lambda whole: whole)
        parts = collapsed(domain.value(one.body), one.free)
        bases = [part for part in parts if part.base is not None]
        factors = [f for p in parts for f in (*p.wide, *(p.narrow if p.base is not None else ()))]
        free = not any(load.array in tainted for factor in factors for load in loads(factor))
        plain = not any(load.array == old for p in parts for f in p.narrow for load in loads(f))
        return parts if len(bases) <= 1 and free and plain else None

    for other in statements:
        if not tainted.intersection(reads(other)):
            continue
        whole = all(index.variable is not None for index in other.index)
        if whole and not other.over and count[other.target] == 1:
            parts = affine(other)
            if parts is not None and any(part.base is not None for part in parts):
                versions[other.target] = (other, parts)
        tainted.add(other.target)
    return affine(statement)
