"""What to say of constructs of Python that the language does not have."""

from __future__ import annotations

import ast

REFUSED = {
    "AugAssign": "`{sign}=` is not part of the language",
    "BinOp": "the operator `{sign}` is not part of the language",
    "UnaryOp": "the operator `{sign}` is not part of the language",
    "Call": "only a name can be called",
    "Lambda": "`lambda` is not part of the language",
    "IfExp": "`if … else` is not part of the language",
    "If": "`if` is not part of the language",
    "While": "`while` is not part of the language",
    "ListComp": "a list is not part of the language",
    "List": "a list is not part of the language",
    "Tuple": "a tuple is not part of the language",
    "JoinedStr": "an f-string is not part of the language",
    "NamedExpr": "`:=` is not part of the language",
    "Starred": "`*` arguments are not part of the language",
    "Return": "`return` is not part of a block",
    "FunctionDef": "`def` is not part of the language",
    "Import": "`import` is not part of the language",
    "ImportFrom": "`import` is not part of the language",
    "Attribute": "attributes are not part of the language, except `.T`",
}
HINTS = {
    "Attribute": "functions stand before their arguments: `exp(x)`, `sum(x)`",
    "AugAssign": "write it out: `W = W {sign} …`",
    "IfExp": "use `where(condition, a, b)`",
    "If": "use `where(condition, a, b)`",
    "Return": "the last line of `output` is its value",
    "FunctionDef": "functions stand under `feature_map`",
    "While": "use `for i in range(n):`",
    "ListComp": "use `concat(e for i in range(n))` or `stack(e for i in range(n))`",
    "List": "use `concat(…)` or `stack(…)`",
    "BitXor": "`x ** n` is the power",
    "FloorDiv": "`/` divides",
    "BitAnd": "conditions are joined by `and`",
    "BitOr": "conditions are joined by `or`",
    "Invert": "conditions are negated by `not`",
}
SIGNS = {
    "Add": "+",
    "Sub": "-",
    "Mult": "*",
    "Div": "/",
    "Pow": "**",
    "MatMult": "@",
    "Mod": "%",
    "FloorDiv": "//",
    "BitXor": "^",
    "BitAnd": "&",
    "BitOr": "|",
    "LShift": "<<",
    "RShift": ">>",
    "Invert": "~",
}


def refusal(node: ast.AST) -> tuple[str, str | None]:
    """Message and hint for a node that is not in the whitelist."""
    kind = type(node).__name__
    operator = type(getattr(node, "op", None)).__name__
    sign = SIGNS.get(operator, "")
    message = REFUSED.get(kind, "this is not part of the language").format(sign=sign)
    hint = HINTS.get(kind, HINTS.get(operator))
    return message, None if hint is None else hint.format(sign=sign)
