"""A second reading of the rule language: walks the `ast` of the formulas with torch operations.

It shares nothing with the compiler. One token, one head: every tensor has exactly the dims that the
rule declares. It trusts its rule (no error messages); what it must get right is the meaning.
"""

import ast
import operator
from collections.abc import Callable, Mapping
from typing import Any

import torch
import yaml
from torch import Tensor

from witnesses import maps
from witnesses.functions import ELEMENTWISE, REDUCTIONS, STRUCTURE, concat, elementwise, matmul

BINARY = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.Pow: operator.pow,
    ast.Mod: operator.mod,
}
COMPARE = {
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
}


def number(text: str) -> int | float:
    try:
        return int(text)
    except ValueError:
        return float(text)


def load(text: str) -> dict[str, Any]:
    """The YAML of a rule with every scalar left as text."""
    found = yaml.load(text, Loader=yaml.BaseLoader)  # builds nothing but text
    assert isinstance(found, dict)
    return found


def dims_of(declared: Any) -> list[str]:
    """Dims of a declaration: a name, a list, `scalar`, or a mapping with `dims`."""
    if isinstance(declared, Mapping):
        declared = declared["dims"]
    if isinstance(declared, list):
        return [str(d) for d in declared]
    return [] if declared == "scalar" else [str(declared)]


class Reader:
    """Evaluates the formulas of one rule on the values of one token."""

    def __init__(self, rule: Mapping[str, Any], values: dict[str, Any], t: Any) -> None:
        self.constants = {n: number(v) for n, v in (rule.get("constants") or {}).items()}
        self.heads = {n: values[n] for g in ("params", "buffers") for n in rule.get(g) or {}}
        self.heads |= {n: v for n, v in values.items() if "_" in n and n not in self.heads}
        self.values = {**self.constants, **values, "t": t}
        self.start = {n: values[n] for n in rule["state"]}
        self.maps = dict(self._map(n, b) for n, b in (rule.get("feature_map") or {}).items())
        self.sizes: dict[str, int] = {}
        for group in ("inputs", "params", "buffers", "state"):
            for name, declared in (rule.get(group) or {}).items():
                self.sizes |= dict(zip(dims_of(declared), values[name].shape, strict=True))

    def _map(self, head: str, body: str) -> tuple[str, Callable[..., Any]]:
        name, _, arguments = head.partition("(")
        names = [a.strip() for a in arguments.rstrip(") ").split(",")] if arguments else ["x"]
        code = ast.parse(body.strip()).body
        if not arguments and len(code) == 1:
            code = [self._with_argument(code[0])]

        def call(*args: Any) -> Any:
            return self.block(
                code, {**self.constants, **self.heads, **dict(zip(names, args, strict=True))}
            )

        return name.strip(), call

    @staticmethod
    def _with_argument(line: ast.stmt) -> ast.stmt:
        """`phi: dpfp(nu=2)` and `phi: l2norm` mean the map of x."""
        x = ast.Name("x", ast.Load())
        if isinstance(line, ast.Expr):
            match line.value:
                case ast.Name(name) if name != "x":
                    return ast.Expr(ast.Call(line.value, [x], []))
                case ast.Call(ast.Name(name), [], _) if name in maps.FEATURE_MAPS:
                    return ast.Expr(ast.Call(line.value.func, [x], line.value.keywords))
        return line

    def block(self, lines: list[ast.stmt], env: dict[str, Any]) -> Any:
        """Runs lines in order; the value of the last expression."""
        value = None
        for line in lines:
            match line:
                case ast.Assign([ast.Name(name)], expression):
                    env[name] = self.of(expression, env)
                case ast.For(ast.Name(name), over, body):
                    for n in self.of(over, env):
                        self.block_in(body, env, name, n)
                case ast.Expr(expression):
                    value = self.of(expression, env)
                case _:
                    raise NotImplementedError(ast.dump(line))
        return value

    def block_in(self, body: list[ast.stmt], env: dict[str, Any], name: str, n: int) -> None:
        env[name] = n
        self.block(body, env)
        del env[name]

    def of(self, e: ast.expr, env: dict[str, Any]) -> Any:
        """The value of an expression: a number, tensor, View, or range."""
        match e:
            case ast.Constant(value):
                return value
            case ast.Name(name):
                return env[name]
            case ast.UnaryOp(ast.USub(), x):
                return elementwise(operator.neg)(self.of(x, env))
            case ast.UnaryOp(ast.Not(), x):
                return elementwise(torch.logical_not)(torch.as_tensor(self.of(x, env)))
            case ast.BinOp(a, ast.MatMult(), b):
                return matmul(self.of(a, env), self.of(b, env))
            case ast.BinOp(a, sign, b):
                return elementwise(BINARY[type(sign)])(self.of(a, env), self.of(b, env))
            case ast.BoolOp(sign, parts):
                join = torch.logical_and if isinstance(sign, ast.And) else torch.logical_or
                found = [torch.as_tensor(self.of(p, env)) for p in parts]
                return self._fold(join, found)
            case ast.Compare(a, signs, others):
                return self._compare(self.of(a, env), signs, [self.of(o, env) for o in others])
            case ast.Attribute(x, "T"):
                return self.of(x, env).T
            case ast.Subscript(x, ast.Tuple(entries)):
                return self.of(x, env)[tuple(self.entry(i, env) for i in entries)]
            case ast.Subscript(x, index):
                return self.of(x, env)[self.entry(index, env)]
            case ast.Call(ast.Name(name), args, keywords):
                return self.call(name, args, {k.arg: k.value for k in keywords}, env)
        raise NotImplementedError(ast.dump(e))

    def entry(self, e: ast.expr, env: dict[str, Any]) -> int | slice:
        """One entry of a subscript."""
        match e:
            case ast.Slice(lo, hi, None):
                return slice(*(None if b is None else self.integer(b, env) for b in (lo, hi)))
            case _:
                return self.integer(e, env)

    def integer(self, e: ast.expr, env: dict[str, Any]) -> int:
        """An index or bound: constants, loop variables and dims."""
        numbers = {n: v for n, v in env.items() if isinstance(v, int)}
        value = self.of(e, numbers | self.sizes)
        assert isinstance(value, int)
        return value

    @staticmethod
    def _fold(join: Callable[[Tensor, Tensor], Tensor], parts: list[Tensor]) -> Tensor:
        value = parts[0]
        for part in parts[1:]:
            value = join(value, part)
        return value

    def _compare(self, a: Any, signs: list[ast.cmpop], others: list[Any]) -> Any:
        links = []
        for sign, b in zip(signs, others, strict=True):
            links.append(elementwise(COMPARE[type(sign)])(a, b))
            a = b
        return links[0] if len(links) == 1 else self._fold(torch.logical_and, links)

    def call(self, name: str, args: list[ast.expr], named: dict[Any, ast.expr], env: Any) -> Any:
        """A function of the language, a map of the rule, or a shipped map, in this order."""
        if name == "prev":
            return self.start[ast.unparse(args[0])]
        if name == "size":
            return self.sizes[ast.unparse(args[0])]
        if name == "eye":
            like = next(v for v in self.start.values())
            n = self.sizes.get(ast.unparse(args[0])) or self.of(args[0], env)
            return torch.eye(n, dtype=like.dtype)
        if name == "range":
            return range(*[self.integer(a, env) for a in args])
        if name == "concat" and isinstance(args[0], ast.GeneratorExp):
            return concat(*self._each(args[0], env))
        values = [self.of(a, env) for a in args]
        options = {k: self.of(v, env) for k, v in named.items()}
        for table in (self.maps, ELEMENTWISE, REDUCTIONS, STRUCTURE):
            if name in table:
                return table[name](*values, **options)
        return self._shipped(name)(*values, **options)

    def _each(self, e: ast.GeneratorExp, env: dict[str, Any]) -> list[Any]:
        (loop,) = e.generators
        assert isinstance(loop.target, ast.Name)
        return [self.of(e.elt, {**env, loop.target.id: n}) for n in self.of(loop.iter, env)]

    def _shipped(self, name: str) -> Callable[..., Any]:
        if name == "cos_position":
            return maps.cos_position
        found = maps.FEATURE_MAPS[name]
        tensors = [self.heads[f"{name}_{n}"] for n in (*found.params, *found.buffers)]
        return lambda x, **options: found.apply(x, *tensors, **options)


def evaluate(
    rule: Mapping[str, Any],
    inputs: Mapping[str, Tensor],
    heads: Mapping[str, Tensor],
    states: Mapping[str, Tensor],
    t: Any = 0,
) -> tuple[Tensor, dict[str, Tensor]]:
    """One token of a rule (a dict of texts as `load` gives it): the output and the new states."""
    reader = Reader(rule, {**inputs, **heads, **states}, t)
    reader.block(ast.parse(rule["update"].strip()).body, reader.values)
    y = reader.block(ast.parse(rule["output"].strip()).body, reader.values)
    return y, {name: reader.values[name] for name in rule["state"]}
