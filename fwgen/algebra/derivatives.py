"""The table of scalar derivatives, each written in the forward value where that is stable.

`TABLE[op](args, value)` gives one `Partial` per argument: the local derivative as a product, valid
where `condition` holds and exactly 0 elsewhere; None where the derivative is 0 everywhere. `value`
is the forward value of the operation: its array where that is stored, else the operation again.
Kinks are PyTorch's: relu and abs have 0 at 0, ties share equally, clamp has 1 at its bounds. So is
what holds at NaN: the adjoint passes relu, maximum and minimum, and ends at clamp.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from fwgen.algebra.products import ONE, ZERO, Product, multiply, product_of
from fwgen.ir.nodes import Apply, Const, Scalar

Args = tuple[Scalar, ...]


@dataclass(frozen=True, slots=True)
class Partial:
    """A local derivative: `factor` where `condition` holds (None: everywhere), else exactly 0."""

    factor: Product
    condition: Scalar | None = None


Partials = tuple[Partial | None, ...]
Rule = Callable[[Args, Scalar], Partials]


def _apply(op: str, *args: Scalar) -> Scalar:
    return Apply(op, args)


def _one_minus(x: Scalar) -> Scalar:
    return _apply("sub", ONE, x)


def _unless(op: str, *args: Scalar) -> Scalar:
    """The comparison's opposite, which also holds where an argument is NaN."""
    return _apply("not", _apply(op, *args))


def _is_recomputed(value: Scalar) -> bool:
    return isinstance(value, Apply)


def _just(*over: Scalar, scale: float = 1.0, under: Args = ()) -> Partial:
    return Partial(product_of(multiply(over)).times(Product(scale, (), under)))


def _mul(args: Args, value: Scalar) -> Partials:
    return tuple(_just(*args[:n], *args[n + 1 :]) for n in range(len(args)))


def _div(args: Args, value: Scalar) -> Partials:
    a, b = args
    if _is_recomputed(value):
        return _just(under=(b,)), _just(a, scale=-1.0, under=(_apply("square", b),))
    return _just(under=(b,)), _just(value, scale=-1.0, under=(b,))


def _power(base: Scalar, exponent: float) -> Product:
    """base ** exponent with small whole exponents spelled out."""
    if exponent == 0:
        return Product()
    if exponent < 0:
        inverse = _power(base, -exponent)
        return Product(1.0, inverse.under, inverse.over)
    if exponent in (1.0, 2.0, 3.0):
        return Product(1.0, (base,) * int(exponent))
    return Product(1.0, (_apply("pow", base, Const(exponent)),))


def _pow(args: Args, value: Scalar) -> Partials:
    base, exponent = args
    if isinstance(exponent, Const):
        n = float(exponent.value)
        return (Partial(_power(base, n - 1).scaled(n)) if n else None), None
    lowered = _apply("pow", base, _apply("sub", exponent, ONE))
    finite = _apply("or", _apply("ne", base, ZERO), _apply("lt", exponent, ZERO))
    return (
        Partial(Product(1.0, (exponent, lowered)), _apply("ne", exponent, ZERO)),
        Partial(Product(1.0, (value, _apply("log", base))), finite),
    )


def _mod(args: Args, value: Scalar) -> Partials:
    a, b = args
    return _just(), _just(_apply("sub", a, value), scale=-1.0, under=(b,))


def _expm1(args: Args, value: Scalar) -> Partials:
    (x,) = args
    return (_just(_apply("exp", x) if _is_recomputed(value) else _apply("add", value, ONE)),)


def _elu(args: Args, value: Scalar) -> Partials:
    (x,) = args
    left = _apply("exp", x) if _is_recomputed(value) else _apply("add", value, ONE)
    return (_just(_apply("select", _apply("le", x, ZERO), left, ONE)),)


def _silu(args: Args, value: Scalar) -> Partials:
    (x,) = args
    s = _apply("sigmoid", x)
    return (_just(s, _apply("add", ONE, _apply("mul", x, _one_minus(s)))),)


def _gelu(args: Args, value: Scalar) -> Partials:
    (x,) = args
    erf = _apply("erf", _apply("mul", Const(math.sqrt(0.5)), x))
    below = _apply("mul", Const(0.5), _apply("add", ONE, erf))
    bell = _apply("exp", _apply("mul", Const(-0.5), _apply("square", x)))
    density = _apply("mul", Const(1 / math.sqrt(2 * math.pi)), x, bell)
    return (_just(_apply("add", below, density)),)


def _tie(loses: str, args: Args) -> Partials:
    """The one of two that does not lose (`lt`: the larger); equal arguments get one half each."""
    a, b = args
    share = _apply("select", _apply("eq", a, b), Const(0.5), ONE)
    return (
        Partial(Product(1.0, (share,)), _unless(loses, a, b)),
        Partial(Product(1.0, (share,)), _unless(loses, b, a)),
    )


def _clamp(args: Args, value: Scalar) -> Partials:
    x, low, high = args
    inside = _apply("and", _apply("ge", x, low), _apply("le", x, high))
    below = _apply("and", _apply("lt", x, low), _apply("lt", low, high))
    above = _apply("or", _apply("gt", x, high), _apply("lt", high, low))
    return (
        Partial(Product(), inside),
        None if isinstance(low, Const) else Partial(Product(), below),
        None if isinstance(high, Const) else Partial(Product(), above),
    )


def _select(args: Args, value: Scalar) -> Partials:
    condition = args[0]
    return None, Partial(Product(), condition), Partial(Product(), _apply("not", condition))


TABLE: dict[str, Rule] = {
    "add": lambda args, y: tuple(_just() for _ in args),
    "sub": lambda args, y: (_just(), _just(scale=-1.0)),
    "neg": lambda args, y: (_just(scale=-1.0),),
    "mul": _mul,
    "div": _div,
    "pow": _pow,
    "mod": _mod,
    "exp": lambda args, y: (_just(y),),
    "log": lambda args, y: (_just(under=args),),
    "log1p": lambda args, y: (_just(under=(_apply("add", ONE, *args),)),),
    "expm1": _expm1,
    "sqrt": lambda args, y: (_just(scale=0.5, under=(y,)),),
    "rsqrt": lambda args, y: (_just(y, y, y, scale=-0.5),),
    "abs": lambda args, y: (_just(_apply("sign", *args)),),
    "sign": lambda args, y: (None,),
    "sin": lambda args, y: (_just(_apply("cos", *args)),),
    "cos": lambda args, y: (_just(_apply("sin", *args), scale=-1.0),),
    "tanh": lambda args, y: (_just(_one_minus(_apply("square", y))),),
    "sigmoid": lambda args, y: (_just(y, _one_minus(y)),),
    "logsigmoid": lambda args, y: (_just(_apply("sigmoid", _apply("neg", *args))),),
    "softplus": lambda args, y: (_just(_apply("sigmoid", *args)),),
    "relu": lambda args, y: (Partial(Product(), _unless("le", *args, ZERO)),),
    "elu": _elu,
    "silu": _silu,
    "gelu": _gelu,
    "square": lambda args, y: (_just(*args, scale=2.0),),
    "erf": lambda args, y: (
        _just(_apply("exp", _apply("neg", _apply("square", *args))), scale=2 / math.sqrt(math.pi)),
    ),
    "stop_gradient": lambda args, y: (None,),
    "maximum": lambda args, y: _tie("lt", args),
    "minimum": lambda args, y: _tie("gt", args),
    "clamp": _clamp,
    "select": _select,
    **{
        op: lambda args, y: (None,) * len(args)
        for op in ("lt", "le", "gt", "ge", "eq", "ne", "and", "or", "not")
    },
}


def partials(expression: Apply, value: Scalar | None = None) -> Partials:
    """The local derivatives of an application by argument; `value`: where its result is stored."""
    return TABLE[expression.op](expression.args, expression if value is None else value)
