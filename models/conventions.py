"""What the field's rules expect: the range of each input, and where gates and params start.

A rule takes activated values, a write strength in [0, 1], a log-decay at most 0, and says nothing
about where they come from. These tables do, by the names that inputs have in the shipped rules. A
rule of your own gets them where it uses the same names, and `AttentionConfig.activations` for the
rest.

A rate is what a state forgets per token. Rates start log-uniform in [1e-3, 0.5], one per head or
channel, so that memories of two to a thousand tokens are there from the first step.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import torch
import torch.nn.functional as F
from torch import Tensor

Start = Callable[[tuple[int, ...]], Tensor]

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "none": lambda x: x,
    "sigmoid": torch.sigmoid,
    "2 sigmoid": lambda x: 2 * torch.sigmoid(x),
    "sigmoid/16": lambda x: torch.sigmoid(x) / 16,
    "logsigmoid": F.logsigmoid,
    "logsigmoid/16": lambda x: F.logsigmoid(x) / 16,
    "softplus": F.softplus,
    "-softplus": lambda x: -F.softplus(x),
    "tanh": torch.tanh,
    "silu": F.silu,
    "l2norm": lambda x: F.normalize(x, dim=-1),
}

# By the name of the input. What is not named here is taken as it is projected.
INPUTS: dict[str, str] = {
    "alpha": "sigmoid",
    "beta": "sigmoid",
    "betar": "sigmoid",
    "beta_i": "sigmoid",
    "beta_u": "sigmoid",
    "beta_o": "sigmoid",
    "betar_i": "sigmoid",
    "betar_u": "sigmoid",
    "betar_o": "sigmoid",
    "eta": "sigmoid",
    "theta": "sigmoid",
    "dt": "softplus",
    "g": "-softplus",
    "gv": "-softplus",
    "mu": "-softplus",
}

# By the name of the rule, where one letter means different things: gates that the rule itself
# activates, and keys that must be of length one for the update to be a contraction.
INPUTS_OF: dict[str, dict[str, str]] = {
    "recurrent_delta": {"beta": "none"},
    "rfa_gated": {"a": "sigmoid"},
    "hgrn2": {"f": "sigmoid"},
    "gdn2": {"b": "sigmoid", "w": "sigmoid", "q": "l2norm", "k": "l2norm"},
    "comba": {"q": "l2norm", "k": "l2norm"},
    "cosformer": {"p": "sigmoid"},
    "rwkv7": {"a": "l2norm"},
    "oja": {"v": "l2norm"},
    "momentum_delta": {"q": "l2norm", "k": "l2norm"},
    "titans": {"q": "l2norm", "k": "l2norm"},
    "ttt_linear": {"eta": "sigmoid/16"},
    "fwm": {"b": "sigmoid", "s": "tanh", "r": "tanh", "u": "tanh", "n0": "tanh"}
    | dict.fromkeys(("e1", "e2", "e3"), "tanh"),
}

# Input -> (other, sign): it becomes sign * sigmoid(itself) * other. An erase vector of its own
# direction would let the state grow exponentially.
TIES: dict[str, dict[str, tuple[str, float]]] = {
    "comba": {"p": ("k", 1.0)},
    "momentum_delta": {"p": ("k", 1.0)},
    "rwkv7": {"b": ("a", -1.0)},
}


def activations(
    rule: str, inputs: Mapping[str, object], asked: Mapping[str, str]
) -> dict[str, str]:
    """The name of the activation of every input of a rule; `asked` is what the user wants."""
    table = INPUTS | INPUTS_OF.get(rule, {}) | dict(asked)
    return {name: table.get(name, "none") for name in inputs}


def tie(rule: str, inputs: dict[str, Tensor]) -> dict[str, Tensor]:
    """Make the inputs that are defined by another one, see `TIES`."""
    for name, (other, sign) in TIES.get(rule, {}).items():
        if name not in inputs:  # a part of the rule's inputs
            continue
        inputs[name] = sign * torch.sigmoid(inputs[name]) * inputs[other]
    return inputs


# --- where gates start: the bias that is added to the projection


def _rates(shape: tuple[int, ...], low: float = 1e-3, high: float = 0.5) -> Tensor:
    """Spread over the last axis: over the heads, or over the channels of each head."""
    count = shape[-1]
    ends = (math.log10(low), math.log10(high))
    middle = torch.tensor([math.sqrt(low * high)])
    return (torch.logspace(*ends, count) if count > 1 else middle).expand(shape)


def _inverse_softplus(x: Tensor) -> Tensor:
    return x + torch.log(-torch.expm1(-x))


def keeps(shape: tuple[int, ...]) -> Tensor:
    """sigmoid of it is exp(-rate): for gates that multiply the state."""
    return -torch.log(torch.expm1(_rates(shape)))


def forgets(shape: tuple[int, ...]) -> Tensor:
    """sigmoid of it is the rate."""
    return torch.logit(_rates(shape))


def decays(shape: tuple[int, ...]) -> Tensor:
    """softplus of it is the rate."""
    return _inverse_softplus(_rates(shape))


def half(shape: tuple[int, ...]) -> Tensor:
    """sigmoid of it is one half."""
    return torch.zeros(shape)


STARTS: dict[str, Start] = {
    **dict.fromkeys((name for name, kind in INPUTS.items() if kind == "sigmoid"), half),
    "dt": lambda shape: _inverse_softplus(_rates(shape, 1e-3, 0.1)),
    "g": decays,
    "gv": decays,
}
STARTS_OF: dict[str, dict[str, Start]] = {
    "gated_cheap_linear": {"alpha": keeps},
    "rfa_gated": {"a": keeps},
    "hgrn2": {"f": keeps},
    "gdn2": {"b": half, "w": half},
    "titans": {"alpha": forgets, "eta": half, "theta": half},
    # Long momentum with large steps swings up: start with short memory and small steps.
    "momentum_delta": {
        "mu": lambda shape: _inverse_softplus(_rates(shape, 0.1, 0.7)),
        "eta": lambda shape: torch.full(shape, -2.0),
    },
    "galite": {"gamma": half, "b": half, "p3": half},
    "agalite": {"gamma": half, "b": half, "p3": half},
    "mlstm": {"i": half, "f": keeps},
    "elstm": {"f": keeps},
    "fwm": {"b": half},
    "cosformer": {"p": half},
}


def start_of(rule: str, name: str, shape: tuple[int, ...]) -> Tensor | None:
    """The start of the bias of an input, [H, *sizes]; None for one that is no gate."""
    start = (STARTS | STARTS_OF.get(rule, {})).get(name)
    return start(shape) if start else None


# --- params and buffers


def _matrix(shape: tuple[int, ...]) -> Tensor:
    """Rows of length about one; vectors and scalars start at zero."""
    return torch.randn(shape) / math.sqrt(shape[-1]) if len(shape) > 2 else torch.zeros(shape)


def _retnet(shape: tuple[int, ...]) -> Tensor:
    """-exp of it is log(1 - 2^-5), log(1 - 2^-6), ... head by head."""
    return torch.log(-torch.log1p(-(2.0 ** (-5 - torch.arange(shape[0])))))


PARAMS_OF: dict[str, dict[str, Start]] = {
    "rwkv4": {"w": lambda shape: _rates(shape).log(), "u": lambda shape: torch.randn(shape) / 2},
    "rwkv6": {"u": lambda shape: torch.randn(shape) / 2},
    "retnet": {"gamma_log": _retnet},
    "mamba2": {"A_log": lambda shape: torch.empty(shape).uniform_(1, 16).log(), "D": torch.ones},
    "longhorn": {"D": torch.ones},
    "ttt_linear": {"w": torch.ones},
    "leaformer": dict.fromkeys(("bq", "bk"), lambda shape: torch.randn(shape) / shape[-1] ** 0.5),
    "elstm": dict.fromkeys(("wz", "wf"), lambda shape: torch.randn(shape) / 2),
}
# Params with a range: they are held as x and given to the rule as f(x).
RANGES_OF: dict[str, dict[str, Callable[[Tensor], Tensor]]] = {
    "rwkv4": {"w": lambda x: -torch.exp(x)},
    "retnet": {"gamma_log": lambda x: -torch.exp(x)},
}


def param_start(rule: str, name: str, shape: tuple[int, ...]) -> Tensor:
    """The start of a param, [H, *sizes]."""
    return PARAMS_OF.get(rule, {}).get(name, _matrix)(shape)


def in_range(rule: str, name: str, value: Tensor) -> Tensor:
    """What the rule is given for the learned tensor."""
    change = RANGES_OF.get(rule, {}).get(name)
    return change(value) if change else value


def draw_buffer(name: str, shape: tuple[int, ...]) -> Tensor:
    """A buffer [H, *sizes]: random directions, frequencies, or Gaussian numbers."""
    if name.endswith("omega") and len(shape) == 3:
        from fwgen.features import orthogonal_random_features

        return orthogonal_random_features(*shape)
    if name.endswith("omega") and len(shape) == 2:
        return torch.linspace(-math.pi, math.pi, shape[1]).repeat(shape[0], 1)
    return torch.randn(shape)
