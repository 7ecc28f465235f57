"""Make wide statements sums of plain products: the pass between lowering and differentiation.

After it, in every body with two or more index variables each product has at most one factor per
proper subset of these variables, and that factor is an element access: compound sub-expressions of
fewer variables have become arrays of their own (`u[i] = beta * (v[i] - p[i])`), functions of wide
values too, and factors that do not depend on a summed variable have left the sum. The wide adjoints
are then plain products as well, and everything else is narrow. What stands inside a `select` stays
there, since moving it out would let its gradient escape the mask. Equal definitions are shared.
"""

from __future__ import annotations

from dataclasses import replace

from fwgen.algebra.groups import (
    axis_order,
    in_order,
    merge_scalars,
    narrow_groups,
    ordered_variables,
    split_factors,
    stays_whole,
)
from fwgen.algebra.guards import guard
from fwgen.algebra.keys import statement_key
from fwgen.algebra.products import Product, build_product, build_sum, multiply, terms_of
from fwgen.ir.fresh import Names
from fwgen.ir.nodes import (
    Apply,
    Array,
    Index,
    Load,
    Reduction,
    Scalar,
    Size,
    Statement,
    Step,
    Var,
)
from fwgen.ir.walk import loads, reads, rename, scalars, variables

_CHEAP = frozenset(
    [
        *("add", "sub", "mul", "neg", "square", "abs", "sign", "relu", "maximum", "minimum"),
        *("stop_gradient", "mod", "lt", "le", "gt", "ge", "eq", "ne", "and", "or", "not"),
    ]
)
_STORED = frozenset(["exp", "expm1", "tanh", "sigmoid", "sqrt", "rsqrt"])
_KINKED = frozenset(["maximum", "minimum", "clamp"])
_ARITHMETIC = frozenset(["add", "sub", "mul", "neg", "div"])


def hoist(step: Step) -> Step:
    """The same token with the invariants above; drops what neither output nor states need."""
    builder = _Hoister(step)
    for statement in guard(step).statements:
        builder.add(rename(statement, builder.alias))
    arrays = tuple(builder.arrays.values())
    return _drop_unused(replace(step, arrays=arrays, statements=tuple(builder.statements)))


class _Hoister:
    def __init__(self, step: Step) -> None:
        self.arrays = {array.name: array for array in step.arrays}
        self.statements: list[Statement] = []
        self.names = Names(self.arrays)
        self.known: dict[str, str] = {}
        self.alias: dict[str, str] = {}
        self.fixed = {step.output, *(state.new for state in step.states)}
        self.line = 0

    def add(self, statement: Statement) -> None:
        """Bring one statement into form and append it, behind what was hoisted out of it."""
        self.line = statement.line
        if statement.reduce == "sum" and self.split_sum(statement):
            return
        own = (*statement.free, *statement.over)
        body = statement.body
        if len(own) >= 2:
            body = self.wide(body, own)
        else:
            body = self.narrow(body) if own else self.scalar(body)
        statement = replace(statement, body=body)
        if not self.share(statement):
            self.statements.append(statement)

    def share(self, statement: Statement) -> bool:
        """Whether an equal array exists already, which then stands for this one."""
        dims = self.arrays[statement.target].dims
        whole = [index.variable for index in statement.index]
        if any(v is None or v.dim != d for v, d in zip(whole, dims, strict=True)):
            return False
        body = statement.body
        copied = isinstance(body, Load) and body.index == statement.index and not statement.over
        if copied and statement.target not in self.fixed:
            assert isinstance(body, Load)
            if self.arrays[body.array].dims == dims:
                self.alias[statement.target] = body.array
                del self.arrays[statement.target]
                return True
        key = statement_key(statement)
        if key in self.known and statement.target not in self.fixed:
            self.alias[statement.target] = self.known[key]
            del self.arrays[statement.target]
            return True
        self.known.setdefault(key, statement.target)
        return False

    def define(self, body: Scalar, own: tuple[Var, ...], over: tuple[Var, ...] = ()) -> Load:
        """A new array with that definition (or an equal old one), accessed at its variables."""
        own = axis_order(body, own) if len(own) > 1 else own
        index = tuple(map(Index.of, own))
        reduce: Reduction | None = "sum" if over else None
        name = self.names.fresh(_base_name(body, len(own), bool(over)))
        self.arrays[name] = Array(name, tuple(var.dim for var in own), "local")
        line = self.line
        self.add(Statement(name, index, body, over, reduce, line=line))
        self.line = line
        return Load(self.alias.get(name, name), index)

    def narrow(self, body: Scalar) -> Scalar:
        """A body with one variable: only costly scalar parts become values of their own."""
        if not variables(body):
            return self.define(body, ()) if _costly(body) else body
        if not isinstance(body, Apply) or body.op == "select":
            return body
        still = [argument for argument in body.args if not variables(argument)]
        joined = Apply(body.op, tuple(still)) if len(still) > 1 else still[0] if still else None
        if body.op not in ("add", "mul") or joined is None or not _costly(joined):
            return Apply(body.op, tuple(map(self.narrow, body.args)))
        args: list[Scalar] = [self.narrow(a) for a in body.args if variables(a)]
        args.insert(min(body.args.index(still[0]), len(args)), self.define(joined, ()))
        return Apply(body.op, tuple(args))

    def scalar(self, body: Scalar, inside: str = "") -> Scalar:
        """A body without variables: inner functions whose value their derivative needs get out."""
        if not isinstance(body, Apply) or not loads(body):
            return body
        named = body.op in _STORED or (inside in _KINKED and _costly(body))
        if inside and named:
            return self.define(body, ())
        if body.op == "select":
            return body
        return Apply(body.op, tuple(self.scalar(argument, body.op) for argument in body.args))

    def wide(self, body: Scalar, own: tuple[Var, ...]) -> Scalar:
        """A body with several variables: a sum of products of accesses, or one function."""
        terms = terms_of(body)
        alone = self.function(terms[0], own) if len(terms) == 1 else None
        if alone is not None:
            return alone
        narrow: dict[tuple[Var, ...], list[Scalar]] = {}
        for term in terms:
            used = ordered_variables(build_product(term), own)
            if len(used) < len(own):
                narrow.setdefault(used, []).append(build_product(term))
        done: list[Scalar] = []
        for term in terms:
            used = ordered_variables(build_product(term), own)
            if len(used) == len(own):
                done.append(build_product(self.product(term, own)))
            elif used in narrow:
                joined = build_sum(narrow.pop(used))
                plain = not isinstance(joined, Apply) or not loads(joined)
                done.append(joined if plain else self.define(joined, used))
        return build_sum(done)

    def function(self, term: Product, own: tuple[Var, ...]) -> Scalar | None:
        """The term if it is one function of wide values, its arguments made simple."""
        if term.coefficient != 1:
            return None
        if len(term.over) == 1 and not term.under:
            only = term.over[0]
            if isinstance(only, Apply) and len(variables(only)) == len(own):
                return None if only.op in _ARITHMETIC else self.simple_arguments(only, own)
        if len(term.under) == 1 and len(variables(term.under[0])) == len(own):
            numerator = build_product(replace(term, under=()))
            return self.simple_arguments(Apply("div", (numerator, term.under[0])), own)
        return None

    def simple_arguments(self, node: Apply, own: tuple[Var, ...]) -> Scalar:
        """A wide function of accesses and constants; a `select` stays as it is."""
        if node.op == "select":
            return node
        args = []
        for argument in node.args:
            simple = not isinstance(argument, Apply) or not loads(argument)
            used = ordered_variables(argument, own)
            args.append(argument if simple else self.define(argument, used))
        return Apply(node.op, tuple(args))

    def product(self, term: Product, own: tuple[Var, ...]) -> Product:
        """A product with one access per set of variables."""
        wide = [factor for factor in term.over if len(variables(factor)) == len(own)]
        divisors = [factor for factor in term.under if len(variables(factor)) == len(own)]
        if divisors:
            wide = [Apply("div", (multiply(wide), multiply(divisors)))]
        found: list[Scalar] = [
            factor if isinstance(factor, Load) else self.define(factor, own) for factor in wide
        ]
        sign = 1.0
        for group in merge_scalars(narrow_groups(term, own), term.coefficient):
            if group.empty:
                sign = group.product.coefficient
            elif group.plain:
                found.append(group.product.over[0])
            else:
                found.append(self.define(build_product(group.product), group.own))
        return Product(sign, in_order(tuple(found), term))

    def split_sum(self, statement: Statement) -> bool:
        """Take out of a sum what does not depend on what it sums over, if there is such a thing."""
        over, free = statement.over, statement.free
        split = [split_factors(term, over) for term in terms_of(statement.body)]
        alone = len(split) == 1
        whole = [stays_whole(*parts, over, free, alone) for parts in split]
        if all(whole):
            return False
        done = []
        rest = [parts for parts, stays in zip(split, whole, strict=True) if not stays]
        joint = [core.times(o) for (o, core), stays in zip(split, whole, strict=True) if stays]
        if joint:
            done.append(self.summed(build_sum(map(build_product, joint)), Product(), free, over))
        done += [self.summed(build_product(core), outer, free, over) for outer, core in rest]
        self.add(replace(statement, body=build_sum(done), over=(), reduce=None))
        return True

    def summed(
        self, body: Scalar, outer: Product, free: tuple[Var, ...], over: tuple[Var, ...]
    ) -> Scalar:
        """outer * sum of body, the sum as an array of its own."""
        used = variables(body)
        inner = tuple(var for var in over if var in used)
        if inner:
            kept = tuple(var for var in free if var in used)
            outer = Product(over=(self.define(body, kept, inner),)).times(outer)
        sizes = tuple(Size(var.dim) for var in over if var not in inner)
        return build_product(outer.times(Product(over=sizes)))


def _costly(expression: Scalar) -> bool:
    """Whether a scalar depends on data and is worth computing once, not once per element."""
    ops = {node.op for node in scalars(expression) if isinstance(node, Apply)}
    return bool(loads(expression)) and not ops <= _CHEAP


def _base_name(body: Scalar, rank: int, reduced: bool) -> str:
    """A short meaningful name: `exp_g` for exp(g), else by the kind of value."""
    if reduced:
        return "r"
    if isinstance(body, Apply) and len(body.args) == 1 and isinstance(body.args[0], Load):
        return f"{body.op}_{body.args[0].array}"
    return "c" if rank == 0 else "u" if rank == 1 else "M"


def _drop_unused(step: Step) -> Step:
    needed = {step.output, *(state.new for state in step.states)}
    kept = []
    for statement in reversed(step.statements):
        if statement.target in needed:
            kept.append(statement)
            needed.update(reads(statement))
    arrays = tuple(a for a in step.arrays if a.role != "local" or a.name in needed)
    return replace(step, arrays=arrays, statements=tuple(reversed(kept)))
