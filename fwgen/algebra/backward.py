"""The adjoint of one token: scalar derivatives by table, and sums over index variables.

For `out[o] = sum_r f(x[...], ...)` an access `x[a]` in the body receives

    d_x[a] += sum over the variables that are not in a of d_out[o] * df/dx[a].

Statements are walked in reverse; the chain rule inside a body is a walk down its tree. Only arrays
that depend on something differentiable get an adjoint, and only where an adjoint arrives.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from fwgen.algebra.derivatives import partials
from fwgen.algebra.gather import gathered
from fwgen.algebra.products import ONE, ZERO, Product, build_product, collect
from fwgen.ir.fresh import Names
from fwgen.ir.nodes import (
    Apply,
    Array,
    Backward,
    Index,
    IndexValue,
    Load,
    Reduction,
    Scalar,
    Size,
    Statement,
    Step,
    Var,
)
from fwgen.ir.verify import differentiable_root
from fwgen.ir.walk import rewrite, variables


def differentiate(step: Step) -> Backward:
    """The backward of one token; `step` is hoisted, so that the adjoints are plain products.

    Seeds are the adjoints of the output and of each state after the token; results those of each
    floating input, param and state before it.
    """
    return _Differentiator(step).run()


@dataclass(frozen=True, slots=True)
class _Path:
    """The adjoint of a node on the way down: a product, and conditions without which it is 0."""

    product: Product
    conditions: tuple[Scalar, ...] = ()

    def value(self) -> Scalar:
        """The contribution as an expression; the masks stand outside, so they mask inf and NaN."""
        result = build_product(self.product)
        for condition in reversed(self.conditions):
            if isinstance(condition, Apply) and condition.op == "not":
                result = Apply("select", (condition.args[0], ZERO, result))
            else:
                result = Apply("select", (condition, result, ZERO))
        return result


class _Differentiator:
    def __init__(self, step: Step) -> None:
        self.step = step
        self.differentiable = _differentiable(step)
        self.known = {array.name: array for array in step.arrays}
        self.names = Names(self.known)
        self.arrays: dict[str, Array] = {}
        self.adjoints: dict[str, str] = {}
        self.statements: list[Statement] = []
        for name in dict.fromkeys((step.output, *(state.new for state in step.states))):
            self.adjoint(name, "seed")

    def run(self) -> Backward:
        step = self.step
        seeds = tuple(self.adjoints.items())
        for statement in reversed(step.statements):
            if statement.target in self.adjoints and statement.target in self.differentiable:
                self.reverse(statement)
        roots = [array.name for array in step.arrays if differentiable_root(array)]
        results = tuple((name, self.adjoints.get(name)) for name in roots)
        arrays = tuple(self.arrays.values())
        return Backward(step, arrays, tuple(self.statements), seeds, results)

    def adjoint(self, name: str, role: str = "local") -> str:
        """The adjoint array of an array, declared on first use."""
        if name not in self.adjoints:
            array = self.known[name]
            fresh = self.names.fresh(f"d_{name}", "")  # d_W_1 is the adjoint of W_1
            self.adjoints[name] = fresh
            seed = role == "seed"
            self.arrays[fresh] = Array(fresh, array.dims, "seed" if seed else "local", of=name)
        return self.adjoints[name]

    def reverse(self, statement: Statement) -> None:
        """The contributions of one statement to the adjoints of what it reads."""
        incoming = Load(self.adjoints[statement.target], statement.index)
        path = _Path(Product(over=(incoming,)))
        if statement.reduce in ("max", "min"):
            path = self.reverse_extremum(statement, incoming)
        stored = Load(statement.target, statement.index) if statement.reduce is None else None
        found: dict[tuple[Load, tuple[Scalar, ...]], list[Product]] = {}
        for load, leaf in self.leaves(statement.body, path, stored):
            found.setdefault((load, leaf.conditions), []).append(leaf.product)
        for (load, conditions), products in found.items():
            self.contribute(statement, load, products, conditions)

    def reverse_extremum(self, statement: Statement, incoming: Load) -> _Path:
        """Equal extrema share: count them, and pass each an equal part; so do all beside NaN."""
        extremum = Load(statement.target, statement.index)
        loses = "lt" if statement.reduce == "max" else "gt"
        hit = Apply("not", (Apply(loses, (statement.body, extremum)),))
        array = self.known[statement.target]
        count = self.names.fresh(f"n_{statement.target}")
        self.arrays[count] = Array(count, array.dims, "local", of=statement.target)
        counted = Apply("select", (hit.args[0], ZERO, ONE))
        self.statements.append(
            replace(statement, target=count, body=counted, reduce="sum", accumulate=True)
        )
        share = Product(over=(incoming,), under=(Load(count, statement.index),))
        return _Path(share, (hit,))

    def leaves(
        self, node: Scalar, path: _Path, stored: Scalar | None
    ) -> Iterator[tuple[Load, _Path]]:
        """The differentiable accesses below a node with their adjoints, in order."""
        if isinstance(node, Load):
            if node.array in self.differentiable:
                yield node, path
        elif isinstance(node, Apply):
            for argument, partial in zip(node.args, partials(node, stored), strict=True):
                if partial is None or not _reaches(argument, self.differentiable):
                    continue
                conditions = path.conditions
                if partial.condition is not None and partial.condition not in conditions:
                    conditions = (*conditions, partial.condition)
                below = _Path(path.product.times(partial.factor), conditions)
                yield from self.leaves(argument, below, None)

    def contribute(
        self,
        statement: Statement,
        load: Load,
        products: list[Product],
        conditions: tuple[Scalar, ...],
    ) -> None:
        """Add products to the adjoint of an access, wide ones in a statement each."""
        wide = len({*statement.free, *statement.over}) >= 2
        for product in collect(products) if wide else [gathered(products)]:
            if conditions and product.coefficient:
                product = Product(over=(_Path(product, conditions).value(),))
            if product.coefficient:
                self.emit(statement, load, product)

    def emit(self, statement: Statement, load: Load, product: Product) -> None:
        """`d_x[a] += sum of product`, with what is constant in the sum taken out of it."""
        index, product = _single_use(load.index, product)
        kept = {var for entry in index for _, var in entry.terms}
        own = (*statement.free, *statement.over, *(v for v in kept if v.name.endswith("'")))
        summed = tuple(var for var in own if var not in kept)
        target = self.adjoint(load.array)
        inner, outer, over = _factor_out(product, summed)
        line = statement.line
        if over and (outer.over or outer.under or outer.coefficient != 1):
            free = tuple(var for var in own if var in set(variables(inner)) - set(over))
            name = self.names.fresh("a")
            temporary = tuple(map(Index.of, free))
            self.arrays[name] = Array(name, tuple(var.dim for var in free), "local")
            inner = rewrite(inner, _unstopped)
            self.statements.append(Statement(name, temporary, inner, over, "sum", True, line))
            product, over = Product(over=(Load(name, temporary),)).times(outer), ()
        elif not over:
            product = outer
        body = rewrite(build_product(product), _unstopped)
        reduce: Reduction | None = "sum" if over else None
        self.statements.append(Statement(target, index, body, over, reduce, True, line))


def _unstopped(node: Scalar) -> Scalar:
    """`stop_gradient` has done its work once an adjoint is derived."""
    return node.args[0] if isinstance(node, Apply) and node.op == "stop_gradient" else node


def _single_use(index: tuple[Index, ...], product: Product) -> tuple[tuple[Index, ...], Product]:
    """Make the variables of a target distinct: x[i, i] becomes x[i, i'] where i' equals i."""
    seen: set[Var] = set()
    result = []
    for entry in index:
        terms = []
        for coefficient, var in entry.terms:
            if var in seen:
                other = Var(var.name + "'", var.dim)
                same = Apply("eq", (IndexValue(Index.of(var)), IndexValue(Index.of(other))))
                value = Apply("select", (same, build_product(product), ZERO))
                product, var = Product(over=(value,)), other
            seen.add(var)
            terms.append((coefficient, var))
        result.append(replace(entry, terms=tuple(terms)))
    return tuple(result), product


def _factor_out(
    product: Product, summed: tuple[Var, ...]
) -> tuple[Scalar, Product, tuple[Var, ...]]:
    """(Body of the sum, factors outside it, variables that it still runs over)."""
    names = set(summed)

    def inside(factor: Scalar) -> bool:
        return bool(set(variables(factor)) & names)

    core = Product(1.0, tuple(filter(inside, product.over)), tuple(filter(inside, product.under)))
    body = build_product(core)
    over = tuple(var for var in summed if var in variables(body))
    sizes = tuple(Size(var.dim) for var in summed if var not in over)
    outer = Product(
        product.coefficient,
        (*(f for f in product.over if not inside(f)), *sizes),
        tuple(f for f in product.under if not inside(f)),
    )
    return body, outer, over


def _reaches(expression: Scalar, differentiable: frozenset[str]) -> bool:
    """Whether a differentiable access has a derivative that is not 0 everywhere."""
    if isinstance(expression, Load):
        return expression.array in differentiable
    if not isinstance(expression, Apply):
        return False
    return any(
        partial is not None and _reaches(argument, differentiable)
        for argument, partial in zip(expression.args, partials(expression), strict=True)
    )


def _differentiable(step: Step) -> frozenset[str]:
    """Names of the arrays that depend differentiably on an input, a param or a state."""
    found = {array.name for array in step.arrays if differentiable_root(array)}
    for statement in step.statements:
        if _reaches(statement.body, frozenset(found)):
            found.add(statement.target)
    return frozenset(found)
