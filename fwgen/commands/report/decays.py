"""What one token multiplies a state by, where several of its lines do: one decay."""

from __future__ import annotations

import math
from dataclasses import replace

from fwgen.commands.report.motion import Factors, Link
from fwgen.ir.nodes import Const, Index
from fwgen.ir.walk import substitute


def joined(links: tuple[Link, ...]) -> tuple[Link, ...]:
    """The links of a token, with decays that act together as one link, and without their writes.

    Scalars go with everything, so they join wherever they stand; others join their neighbours.
    """
    scalar = replace(links[0], negative=False, scale=(), sides=(), wide=(), erases=(), writes=())
    found: list[Link] = []
    for link in links:
        bare = not link.erases
        if bare and not any(link.sides) and not link.wide:
            scalar = _product(scalar, link)
        elif bare and found and not found[-1].erases:
            found[-1] = _product(found[-1], link)
        else:
            found.append(replace(link, writes=()))
    place = next((n for n, link in enumerate(found) if not link.erases), None)
    if place is None:
        return (scalar, *found) if scalar.scale or scalar.negative or not found else tuple(found)
    found[place] = _product(scalar, found[place])
    return tuple(found)


def _product(first: Link, then: Link) -> Link:
    """Two decays as one, over the axes of the second."""
    names = dict(zip(first.axes, map(Index.of, then.axes), strict=True))

    def over(factors: Factors) -> Factors:
        return tuple(substitute(factor, names) for factor in factors)

    sides = first.sides or ((),) * len(then.sides)
    return replace(
        then,
        before=first.before,
        negative=first.negative != then.negative,
        scale=_folded((*first.scale, *then.scale)),
        sides=tuple((*over(a), *b) for a, b in zip(sides, then.sides, strict=True)),
        wide=(*over(first.wide), *then.wide),
        writes=(),
    )


def _folded(factors: Factors) -> Factors:
    """Numbers among the factors as one."""
    values = [factor.value for factor in factors if isinstance(factor, Const)]
    rest = tuple(factor for factor in factors if not isinstance(factor, Const))
    value = math.prod(values)
    return rest if value == 1 else (Const(value), *rest)
