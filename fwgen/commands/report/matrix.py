"""The motion of a state in matrix notation: `W_2 = W_1 (I - beta kf kf^T) + beta v kf^T`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from fwgen.commands.report.blocks import Math
from fwgen.commands.report.motion import Erase, Factors, Link, Write
from fwgen.emit import latex
from fwgen.ir.nodes import Apply, Const, Load, Scalar, Var
from fwgen.ir.text import OR, POW, scalar_text
from fwgen.ir.walk import rewrite, variables


def vector(expression: Scalar) -> Scalar:
    """An expression without its index variables: `exp(g[j])` is the vector `exp(g)`."""

    def change(node: Scalar) -> Scalar:
        if isinstance(node, Load):
            return Load(node.array, tuple(index for index in node.index if not index.terms))
        return node

    return rewrite(expression, change)


@dataclass(frozen=True)
class Matrix:
    """Prints links; `names` holds the LaTeX symbols of arrays."""

    names: Mapping[str, str]

    def link(self, link: Link) -> Math:
        """One version of a state from the version before it."""
        decayed = self.decayed(link)
        text, tex = f"{link.after} = {decayed.text}", f"{self.names[link.after]} = {decayed.latex}"
        for write in link.writes:
            added = self._write(write)
            sign = "-" if write.negative else "+"
            text, tex = f"{text} {sign} {added.text}", f"{tex} {sign} {added.latex}"
        return Math(text, tex)

    def decayed(self, link: Link) -> Math:
        """What a link makes of the version before it, its writes left out."""
        before = Math(link.before, self.names[link.before])
        if link.erases:
            transition = self.transition(link)
            left = link.erases[0].value
            return _spaced(transition, before) if left else _spaced(before, transition)
        return self._scaled(link, before)

    def _scaled(self, link: Link, before: Math) -> Math:
        """A decay alone: a scalar in front, a diagonal on its side; a vector element-wise."""
        parts = [self.product(link.scale)] if link.scale else []
        *value, key = link.sides or ((),)  # a scalar has no sides
        if value and value[0]:
            parts.append(self._diagonal(value[0]))
        if not value and key:
            side = self.side(key, bare=True)
            parts.append(
                Math(f"{side.text} * {before.text}", rf"{side.latex} \odot {before.latex}")
            )
        else:
            parts.append(before)
        if value and key:
            parts.append(self._diagonal(key))
        found = _spaced(*parts)
        return Math("-" * link.negative + found.text, "-" * link.negative + found.latex)

    def transition(self, link: Link) -> Math:
        """`(I - beta kf kf^T)`: the matrix that a link multiplies the state by."""
        axis = 0 if link.erases[0].value else -1
        base = self.product(link.scale) if link.scale else None
        if link.sides[axis]:
            diagonal = self._diagonal(link.sides[axis])
            base = diagonal if base is None else _spaced(base, diagonal)
        elif base is None:
            base = Math("I", "I")
        else:
            base = _spaced(base, Math("I", "I"))
        text, tex = "-" * link.negative + base.text, "-" * link.negative + base.latex
        for group in grouped(link.erases):
            sign, erase = self._group(group)
            text, tex = f"{text} {sign} {erase.text}", f"{tex} {sign} {erase.latex}"
        return _bracketed(Math(text, tex))

    def _group(self, group: Sequence[Erase]) -> tuple[str, Math]:
        """Sign and `scale query write^T` of erases that share scale and written vector."""
        scale = [self.product(group[0].scale)] if group[0].scale else []
        sign = "-" if len(group) == 1 and group[0].negative else "+"
        query, write = self.query(group), self.side(group[0].write)
        sides = (write, query) if group[0].value else (query, write)
        return sign, _spaced(*scale, sides[0], _transposed(sides[1]))

    def query(self, group: Sequence[Erase]) -> Math:
        """What the state is multiplied by in erases of one group: `(q - k)`."""
        if len(group) == 1:
            return self.side(group[0].query)
        parts = [(e.negative, self.side(e.query, bare=True)) for e in group]
        parts.sort(key=lambda part: part[0])
        text, tex = "", ""
        for n, (negative, part) in enumerate(parts):
            sign = ("-" if negative else "") if not n else (" - " if negative else " + ")
            text, tex = text + sign + part.text, tex + sign + part.latex
        return _bracketed(Math(text, tex))

    def _write(self, write: Write) -> Math:
        parts = [self.product(write.scale)] if write.scale else []
        if write.wide:
            parts.append(self.side(write.wide))
        elif len(write.sides) == 2:
            parts += [self.side(write.sides[0]), _transposed(self.side(write.sides[1]))]
        elif write.sides:
            parts.append(self.side(write.sides[0], bare=not parts))
        return _spaced(*parts) if parts else Math("1", "1")

    def _diagonal(self, factors: Factors) -> Math:
        inner = self.side(factors, bare=True, alone=True)
        return Math(f"diag({inner.text})", rf"\operatorname{{diag}}\left({inner.latex}\right)")

    def side(self, factors: Factors, *, bare: bool = False, alone: bool = False) -> Math:
        """A vector, its factors multiplied element-wise; in brackets unless simple or `bare`.

        With `alone` nothing stands beside it, so that a sum needs no brackets either.
        """
        if not factors:
            return Math("1", "1")
        found = self.product(factors, " * ", alone and len(factors) == 1)
        return found if bare or len(factors) == 1 else _bracketed(found)

    def product(self, factors: Factors, between: str = " ", alone: bool = False) -> Math:
        r"""Factors side by side, or element-wise (` * `, in LaTeX `\odot` between vectors)."""
        printer = latex.Latex(self.names)
        whole = quotient(factors)
        items = [vector(factor) for factor in whole]
        # Side by side a quotient, in text, would read as part of what stands beside it.
        texts = [scalar_text(item, OR if alone else POW) for item in items]
        texs = [printer.scalar(item, latex.OR if alone else latex.MUL) for item in items]
        tex = texs[0]
        for left, right, more in zip(whole, whole[1:], texs[1:], strict=False):
            apart = between == " * " and variables(left) and variables(right)
            tex += (r" \odot " if apart else r"\, ") + more
        return Math(between.join(texts), tex)


def quotient(factors: Factors) -> Factors:
    """Divisors, which come as factors 1 / x, below one line with the factors before them."""
    under = tuple(_divisor(f) for f in factors)
    divisors = tuple(d for d in under if d is not None)
    over = tuple(f for f, d in zip(factors, under, strict=True) if d is None)
    if not divisors or len({*map(_axes, factors)}) > 1:
        return factors
    return (Apply("div", (_multiplied(over), _multiplied(divisors))),)


def _divisor(factor: Scalar) -> Scalar | None:
    match factor:
        case Apply("div", (Const(1), divisor)):
            return divisor
    return None


def _multiplied(factors: Factors) -> Scalar:
    return Apply("mul", factors) if len(factors) > 1 else factors[0] if factors else Const(1)


def _axes(factor: Scalar) -> tuple[Var, ...]:
    return tuple(variables(factor))


def grouped(erases: Sequence[Erase]) -> list[list[Erase]]:
    """Erases that share their scale and the vector that they write along."""
    found: dict[tuple[Factors, Factors], list[Erase]] = {}
    for erase in erases:
        found.setdefault((erase.scale, _nameless(erase.write)), []).append(erase)
    return list(found.values())


def symmetric(group: Sequence[Erase]) -> bool:
    """Whether a group is `I - scale c c^T`: what is erased is what is written."""
    if len(group) != 1:
        return False
    return group[0].negative and _nameless(group[0].query) == _nameless(group[0].write)


def _nameless(factors: Factors) -> Factors:
    return tuple(sorted(map(vector, factors), key=repr))


def _bracketed(math: Math) -> Math:
    return Math(f"({math.text})", rf"\left({math.latex}\right)")


def _transposed(math: Math) -> Math:
    tex = f"{{{math.latex}}}" if "^" in math.latex else math.latex
    return Math(f"{math.text}^T", rf"{tex}^{{\top}}")


def _spaced(*parts: Math) -> Math:
    return Math(" ".join(p.text for p in parts), r"\, ".join(p.latex for p in parts))
