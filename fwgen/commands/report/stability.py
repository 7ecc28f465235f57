"""Notes on stability, from the structure of the update: what stretches a state, and when."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from fwgen.commands.report.blocks import Line, Math
from fwgen.commands.report.bounds import Bounds
from fwgen.commands.report.conditions import Conditions, literal, number
from fwgen.commands.report.decays import joined
from fwgen.commands.report.hazards import hazards
from fwgen.commands.report.matrix import Matrix, grouped, symmetric
from fwgen.commands.report.maxima import offset
from fwgen.commands.report.motion import Erase, Factors, Link, motion, overwritten
from fwgen.commands.report.norms import at_most_one, clipped
from fwgen.commands.report.paths import entangled
from fwgen.emit.latex import Latex, symbols
from fwgen.ir.nodes import Apply, Load, State, Step
from fwgen.ir.text import scalar_text
from fwgen.ir.walk import variables

if TYPE_CHECKING:
    from fwgen.algebra.classes import Transition

FLOAT32 = math.log(3.4028235e38)
KEPT = "the token does not stretch it"


def stability(step: Step, transitions: Sequence[Transition]) -> list[Line]:
    """Notes on every state, then on single formulas. `step` is as lowered."""
    notes = _Notes(step)
    lines: list[Line] = []
    still = ("nonlinear", "affine", "running max", "identity")
    moved: list[State] = []
    for state, transition in zip(step.states, transitions, strict=True):
        lines += notes.state(state, transition)
        if transition.kind not in still and not overwritten(step, state):
            moved.append(state)
    lines += notes.gradients(moved)
    return lines + hazards(step, notes.bounds, notes.latex, notes.conditions.seen)


class _Notes:
    def __init__(self, step: Step) -> None:
        self.step, self.bounds = step, Bounds(step)
        names = symbols(step.arrays)
        self.matrix, self.latex = Matrix(names), Latex(names)
        self.conditions = Conditions(self.bounds, self.latex)

    def state(self, state: State, transition: Transition) -> Iterator[Line]:
        """The notes on one state."""
        name = Math(state.name, self.latex.names[state.old])
        limit = self._limit(state)
        links = motion(self.step, state)
        if limit is not None:
            yield name, *limit
        elif overwritten(self.step, state):
            yield name, ": overwritten at every token."
        elif transition.kind == "running max":
            yield name, *self._maximum(state)
        elif links is None or transition.kind == "affine":
            reason = (
                f"{transition.kind}: {transition.reason}" if transition.reason else transition.kind
            )
            yield name, f": {reason}; no bound follows from its form."
        else:
            whole = joined(links)
            found = [line for link in whole for line in self._link(link, len(whole) == 1)]
            for line in found or [self._kept()]:
                yield name, *line

    def gradients(self, moved: Sequence[State]) -> Iterator[Line]:
        """What the notes on states say of their gradients; `moved` are those that have factors."""
        mixed = entangled(self.step)
        alone = [state for state in moved if state.name not in mixed]
        also = [state for state in self.step.states if state.name in mixed]
        if alone:
            whose = self._listed(alone) if also else ("the states",)
            text = " move by the same factors, transposed, from the last token back to the first: "
            yield "Gradients of ", *whose, text, "the same conditions keep them from growing."
        if also:
            one = len(also) == 1
            text = (
                f": later states depend on {'it' if one else 'them'} in other ways, too, through "
            )
            text += "what moves them or is written, so the conditions do not bound "
            yield *self._listed(also), text + ("its gradient." if one else "their gradients.")

    def _listed(self, states: Sequence[State]) -> Iterator[str | Math]:
        for place, state in enumerate(states):
            yield from (", ",) if place else ()
            yield Math(state.name, self.latex.names[state.old])

    def _limit(self, state: State) -> Line | None:
        """A bound that the last line of the update sets, whatever came before."""
        if clipped(state.new, self.bounds):
            return (": its norm is at most 1 after every token.",)
        found = self.bounds.array(state.new)
        if math.inf in (-found.low, found.high):
            return None
        return (f": every element lies between {number(found.low)} and {number(found.high)}.",)

    def _kept(self) -> Line:
        return (
            ": nothing is forgotten, so it grows with the number of tokens; normalise the read if "
            "that matters.",
        )

    def _maximum(self, state: State) -> Line:
        """A maximum that what is added to the old value does not raise."""
        added, head = offset(state, self.conditions), ": a running maximum; "
        if added is None:
            return (head, "no bound follows from its form.")
        end, known = "it grows no further than what it is taken of", self.bounds.of(added)
        if known.high <= 0:
            return (head, end, ".")
        if known.low >= 0:
            return (head, "what is added to its old value only raises it, token by token.")
        return (head, end, " while ", self.conditions.between(None, added, 0), ".")

    def _link(self, link: Link, alone: bool) -> Iterator[Line]:
        """Notes on one version of a state, `alone` if it is the only one; none if it only adds."""
        if link.erases:
            yield from self._erasing(link)
            return
        value = literal(link.scale)
        sides = [side for side in (*link.sides, link.wide) if side]
        if value is not None and not sides:
            if value != 1 or link.negative:
                yield self._literal(-value if link.negative else value, alone)
            return
        groups = [*([link.scale] if link.scale else []), *sides]
        if value is not None and abs(value) > 1:
            groups = [(*link.scale, *sides[0]), *sides[1:]]  # a number alone has no condition
        for factors in groups:
            yield self._decayed(factors)

    def _literal(self, value: float, alone: bool) -> Line:
        head, size = f": multiplied by {number(value)} at every token", abs(value)
        if size == 0:
            return (": cleared at every token.",)
        if size == 1:
            return (f"{head}, which changes its sign and not its size.",)
        if not alone:
            does = "stretches" if size > 1 else "does not stretch"
            return (f"{head}, which by itself {does} it.",)
        if size > 1:
            tokens = FLOAT32 / math.log(size)
            return (
                f"{head}, so it grows like ",
                Math(f"{number(size)}^n", f"{number(size)}^{{n}}"),
                " over n tokens, whatever the inputs: "
                f"float32 overflows after {tokens:.0f} tokens.",
            )
        half = math.log(0.5) / math.log(size)
        return (f"{head}, so what was written fades to a half in {half:.1f} tokens.",)

    def _decayed(self, factors: Factors) -> Line:
        """A decay by what is not a plain number."""
        product = self.matrix.side(factors, bare=True, alone=True)
        if len(factors) == 1 and len(variables(factors[0])) > 1:
            product = Math(scalar_text(factors[0]), self.latex.scalar(factors[0]))
        conditions = list(dict.fromkeys(self._conditions(factors)))
        if not conditions:
            end = ", at most 1 in size by its definition, so it does not grow by itself."
            return ": multiplied by ", product, end
        head = (": multiplied by ", product, "; it does not grow by itself while ")
        return (*head, *_joined(conditions), ".")

    def _conditions(self, factors: Factors) -> list[Math]:
        """What keeps a product at most 1 in size: its factors apart, or all of it."""
        value = literal(tuple(f for f in factors if literal((f,)) is not None))
        assert value is not None
        self.conditions.note(factors)
        rest = [f for f in factors if literal((f,)) is None]
        if abs(value) <= 1:
            found = [self.conditions.at_most_one(factor) for factor in rest]
            return [math_ for math_ in found if math_ is not None]
        return [self.conditions.size(Apply("mul", tuple(factors)))]

    def _erasing(self, link: Link) -> Iterator[Line]:
        """Notes on a link whose writes read the state."""
        plain = not any((link.scale, *link.sides, link.wide))
        transition = self.matrix.transition(link)
        groups = grouped(link.erases)
        if plain and len(groups) == 1 and symmetric(groups[0]):
            yield self._reflection(groups[0][0], transition)
        elif plain and len(groups) == 1:
            yield self._skewed(groups[0], transition)
        else:
            yield (
                ": the norm of ",
                transition,
                " is at most ",
                self._norm(link, groups),
                "; nothing in the rule keeps that at most 1, "
                "so products over many tokens may grow.",
            )

    def _reflection(self, erase: Erase, transition: Math) -> Line:
        """I - s c c^T: 1 across c, 1 - s |c|^2 along it."""
        c = self.matrix.side(erase.write)
        scale = self.matrix.product(erase.scale) if erase.scale else None
        square = Math(f"|{c.text}|^2", rf"\left|{c.latex}\right|^{{2}}")
        whole = square
        if scale is not None:
            whole = Math(f"{scale.text} {square.text}", rf"{scale.latex}\, {square.latex}")
        short = all(isinstance(f, Load) for f in erase.write) and len(erase.write) == 1
        name = erase.write[0].array if short and isinstance(erase.write[0], Load) else ""
        short = short and at_most_one(name, self.bounds)
        rates = [self.bounds.of(factor) for factor in erase.scale]
        positive = all(rate.low >= 0 for rate in rates)
        small = positive and math.prod(rate.high for rate in rates) <= 2
        if short and small:
            return (": ", transition, f": {KEPT}, by the definitions of its parts.")
        low = "" if positive else "0 <= "
        low_tex = "" if positive else r"0 \le "
        wanted = Math(f"{low}{whole.text} <= 2", rf"{low_tex}{whole.latex} \le 2")
        line: Line = (": ", transition, f": {KEPT} while ", wanted)
        if short and scale is not None:
            part = Math(f"{low}{scale.text} <= 2", rf"{low_tex}{scale.latex} \le 2")
            length = Math(f"|{c.text}| <= 1", rf"\left|{c.latex}\right| \le 1")
            line = (*line, "; since ", length, " by its definition, ", part, " is enough")
        return (*line, ". Beyond, tokens stretch what lies along ", c, ", in every form.")

    def _skewed(self, group: Sequence[Erase], transition: Math) -> Line:
        """I + s a c^T with a and c in different directions."""
        a, c = self.matrix.query(group), self.matrix.side(group[0].write)
        sign = "-" if len(group) == 1 and group[0].negative else "+"
        scale = self.matrix.product(group[0].scale) if group[0].scale else None
        inner = Math(f"{a.text}^T {c.text}", rf"{a.latex}^{{\top}}\, {c.latex}")
        if scale is not None:
            inner = Math(f"{scale.text} {inner.text}", rf"{scale.latex}\, {inner.latex}")
        value = Math(f"1 {sign} {inner.text}", f"1 {sign} {inner.latex}")
        return (
            ": ",
            transition,
            " has the eigenvalue ",
            value,
            " beside ones; the vectors differ, so even where that is at most 1 in size its norm "
            "can exceed 1, and products over many tokens may grow.",
        )

    def _norm(self, link: Link, groups: Sequence[Sequence[Erase]]) -> Math:
        """The triangle inequality over a link's decay and erases."""
        axis = 0 if link.erases[0].value else -1
        factors = (*link.scale, *link.sides[axis])
        base = self.matrix.side(factors, bare=True) if factors else Math("1", "1")
        text, tex = base.text, base.latex
        if link.sides[axis]:
            text, tex = f"max |{text}|", rf"\max \left|{tex}\right|"
        elif factors:
            text, tex = f"|{text}|", rf"\left|{tex}\right|"
        for group in groups:
            parts = [self.matrix.query(group), self.matrix.side(group[0].write)]
            if group[0].scale:
                parts.insert(0, self.matrix.product(group[0].scale))
            text += " + " + " ".join(f"|{p.text}|" for p in parts)
            tex += " + " + r"\, ".join(rf"\left|{p.latex}\right|" for p in parts)
        return Math(text, tex)


def _joined(conditions: Sequence[Math]) -> Line:
    line: list[str | Math] = []
    for n, condition in enumerate(conditions):
        line += [" and ", condition] if n else [condition]
    return tuple(line)
