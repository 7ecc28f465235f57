"""The whitelist: formula text -> syntax tree, over Python's `ast`. Nothing is ever evaluated."""

from __future__ import annotations

import ast

from fwgen.language import tree
from fwgen.language.refusals import refusal
from fwgen.language.source import Report, Span, Text
from fwgen.language.syntax import DEEPEST, python_lines

LONGEST = 400
LARGEST = 10**308
BINARY: dict[type[ast.operator], str] = {
    ast.Add: "add",
    ast.Sub: "sub",
    ast.Mult: "mul",
    ast.Div: "div",
    ast.Pow: "pow",
    ast.Mod: "mod",
    ast.MatMult: "matmul",
}
COMPARE: dict[type[ast.cmpop], str] = {
    ast.Lt: "lt",
    ast.LtE: "le",
    ast.Gt: "gt",
    ast.GtE: "ge",
    ast.Eq: "eq",
    ast.NotEq: "ne",
}


class RefusedError(Exception):
    """A construct that is not in the language; already reported."""


def parse(text: Text, report: Report) -> tuple[tree.Statement, ...] | None:
    """The statements of a formula or block; None when it could not be read at all.

    What is refused is reported, and a line with it becomes a `Broken` one.
    """
    if not text.value.strip():
        report.error(text.span(), "a formula is missing here")
        return None
    module, faulty = python_lines(text, report)
    if module is None:
        return None
    if not module.body:
        report.error(text.span(), "a formula is missing here, beside the comment")
        return None
    reader = _Reader(text, report, faulty)
    return tuple(reader.statement(node) for node in module.body)


class _Reader:
    """Converts `ast` nodes of one text; everything that is not listed is refused."""

    def __init__(self, text: Text, report: Report, faulty: frozenset[int]) -> None:
        self.text = text
        self.report = report
        self.faulty = faulty
        self.depth = 0

    def span(self, node: ast.AST) -> Span:
        line, start = getattr(node, "lineno", 1) - 1, getattr(node, "col_offset", 0)
        same = getattr(node, "end_lineno", 0) == line + 1
        return self.text.span(line, start, getattr(node, "end_col_offset", 0) if same else None)

    def refuse(self, node: ast.AST, message: str, hint: str | None = None) -> RefusedError:
        self.report.error(self.span(node), message, hint)
        return RefusedError()

    def unknown(self, node: ast.AST) -> RefusedError:
        return self.refuse(node, *refusal(node))

    def statement(self, node: ast.stmt) -> tree.Statement:
        """A line of a block."""
        try:
            if node.lineno - 1 in self.faulty:
                raise RefusedError
            match node:
                case ast.Assign(targets=[ast.Name() as target], value=value):
                    name = tree.Name(self.span(target), target.id)
                    return tree.Assign(self.span(node), name, self.expression(value))
                case ast.Assign(targets=targets):
                    wrong = targets[-1] if len(targets) == 1 else node
                    raise self.refuse(wrong, "an assignment has one name on its left")
                case ast.Expr(value=value):
                    return tree.Evaluate(self.span(node), self.expression(value))
                case ast.For(target=ast.Name() as target, iter=counter, body=body, orelse=[]):
                    return self.loop(node, target, counter, body)
                case _:
                    raise self.unknown(node)
        except RefusedError:
            stored = [n for n in ast.walk(node) if isinstance(n, ast.Name)]
            names = [n.id for n in stored if isinstance(n.ctx, ast.Store)]
            return tree.Broken(self.span(node), tuple(dict.fromkeys(names)))

    def loop(
        self, node: ast.For, target: ast.Name, counter: ast.expr, body: list[ast.stmt]
    ) -> tree.Statement:
        self.depth += 1
        if self.depth > DEEPEST:
            raise self.refuse(node, f"nested more than {DEEPEST} deep")
        variable = tree.Name(self.span(target), target.id)
        read = self.range(counter)
        lines = tuple(self.statement(line) for line in body)
        self.depth -= 1
        return tree.For(self.span(node), variable, read, lines)

    def range(self, node: ast.expr) -> tree.Range:
        """`range(stop)` or `range(start, stop)`."""
        match node:
            case ast.Call(func=ast.Name(id="range"), args=[stop], keywords=[]):
                return tree.Range(self.span(node), None, self.expression(stop))
            case ast.Call(func=ast.Name(id="range"), args=[start, stop], keywords=[]):
                first = self.expression(start)
                return tree.Range(self.span(node), first, self.expression(stop))
        raise self.refuse(node, "a loop runs over `range(stop)` or `range(start, stop)`")

    def expression(self, node: ast.expr) -> tree.Expression:
        """An expression; raises RefusedError after reporting."""
        self.depth += 1
        try:
            if self.depth > DEEPEST:
                raise self.refuse(node, f"nested more than {DEEPEST} deep")
            if isinstance(node, ast.BinOp):
                return self.chain(node)
            return self.simple(node)
        finally:
            self.depth -= 1

    def chain(self, node: ast.BinOp) -> tree.Expression:
        """`a + b - c …`, as long as it likes: only brackets nest."""
        spine: list[ast.BinOp] = []
        inner: ast.expr = node
        while isinstance(inner, ast.BinOp):
            spine.append(inner)
            inner = inner.left
        if len(spine) > LONGEST:
            raise self.refuse(inner, f"more than {LONGEST} operators in one sum or product")
        left = self.expression(inner)
        for step in reversed(spine):
            op = BINARY.get(type(step.op))
            if op is None:
                raise self.unknown(step)
            left = tree.Binary(self.span(step), op, left, self.expression(step.right))
        return left

    def simple(self, node: ast.expr) -> tree.Expression:
        match node:
            case ast.Name(id=name):
                return tree.Name(self.span(node), name)
            case ast.Constant(value=value):
                return self.constant(node, value)
            case ast.UnaryOp(op=ast.USub(), operand=operand):
                return tree.Unary(self.span(node), "neg", self.expression(operand))
            case ast.UnaryOp(op=ast.UAdd(), operand=operand):
                return self.expression(operand)
            case ast.UnaryOp(op=ast.Not(), operand=operand):
                return tree.Unary(self.span(node), "not", self.expression(operand))
            case ast.Compare(left=left, ops=ops, comparators=others):
                names = [COMPARE.get(type(op)) for op in ops]
                if None in names:
                    raise self.refuse(node, "this comparison is not part of the language")
                operands = tuple(self.expression(part) for part in (left, *others))
                return tree.Compare(self.span(node), tuple(n for n in names if n), operands)
            case ast.BoolOp(op=op, values=values):
                operands = tuple(self.expression(part) for part in values)
                return tree.Logic(
                    self.span(node), "and" if isinstance(op, ast.And) else "or", operands
                )
            case ast.Attribute(value=value, attr="T"):
                return tree.Transpose(self.span(node), self.expression(value))
            case ast.Subscript(value=value, slice=slices):
                parts = slices.elts if isinstance(slices, ast.Tuple) else [slices]
                items = tuple(self.item(part) for part in parts)
                return tree.Subscript(self.span(node), self.expression(value), items)
            case ast.Call(func=ast.Name() as function):
                return self.call(node, function)
            case ast.Call(func=called):
                raise self.unknown(called)
            case _:
                raise self.unknown(node)

    def constant(self, node: ast.expr, value: object) -> tree.Expression:
        if isinstance(value, str):
            return tree.String(self.span(node), value)
        if type(value) is int or type(value) is float:
            if abs(value) > LARGEST:
                shown = (ast.get_source_segment(self.text.value, node) or "")[:40]
                raise self.refuse(node, f"the number `{shown}` is too large")
            return tree.Number(self.span(node), value if abs(value) < 2**53 else float(value))
        raise self.refuse(node, "this constant is not part of the language")

    def item(self, node: ast.expr) -> tree.Slice | tree.Expression:
        if not isinstance(node, ast.Slice):
            return self.expression(node)
        if node.step is not None:
            raise self.refuse(node.step, "a slice has no step")
        bounds = [None if b is None else self.expression(b) for b in (node.lower, node.upper)]
        return tree.Slice(self.span(node), bounds[0], bounds[1])

    def call(self, node: ast.Call, function: ast.Name) -> tree.Expression:
        name = tree.Name(self.span(function), function.id)
        arguments = tuple(self.argument(part) for part in node.args)
        keywords = []
        for keyword in node.keywords:
            if keyword.arg is None:
                raise self.refuse(keyword.value, "`**` arguments are not part of the language")
            line, start = keyword.lineno - 1, keyword.col_offset
            word = self.text.span(line, start, start + len(keyword.arg))
            keywords.append((tree.Name(word, keyword.arg), self.expression(keyword.value)))
        return tree.Call(self.span(node), name, arguments, tuple(keywords))

    def argument(self, node: ast.expr) -> tree.Expression:
        if not isinstance(node, ast.GeneratorExp):
            return self.expression(node)
        match node.generators:
            case [ast.comprehension(target=ast.Name() as target, iter=counter, ifs=[])]:
                variable = tree.Name(self.span(target), target.id)
                element = self.expression(node.elt)
                return tree.Each(self.span(node), element, variable, self.range(counter))
        raise self.refuse(node, "one `for i in range(…)` is what a comprehension may have")
