"""What a construct is: the text of a rule, and the witness that says what it means."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from witnesses.table import Values, Witness

QKV = {"q": "K", "k": "K", "v": "V"}
W = {"W": "V K"}
Formula = Callable[[Values, Tensor, Tensor], Tensor]
Update = Callable[[Values, Values, Tensor], Tensor]


@dataclass(frozen=True)
class Construct:
    """A rule as text, its witness, and what replaces constants and maps of the text."""

    witness: Witness
    text: str
    set: dict[str, float] = field(default_factory=dict)
    maps: dict[str, str] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return self.witness.name

    def __repr__(self) -> str:
        return self.name


def block(lines: str) -> str:
    """A formula of one or more lines as a YAML block."""
    return "|\n" + "\n".join(f"  {line}" for line in lines.split("\n"))


def section(name: str, dims: dict[str, str], sizes: dict[str, str]) -> str:
    """A section of tensors, or nothing; `sizes` are the texts of sizes that are no name."""
    lists = {n: ", ".join(sizes.get(d, d) for d in text.split()) for n, text in dims.items()}
    entries = (f"{n}: {f'[{text}]' if text else 'scalar'}" for n, text in lists.items())
    return f"{name}: {{{', '.join(entries)}}}\n" if dims else ""


def rule(
    w: Witness,
    update: str,
    output: str,
    more: str = "",
    state: str = "",
    sizes: dict[str, str] | None = None,
) -> Construct:
    """A construct from its parts; `more` are further sections, `state` replaces the plain one.

    Tensors with a `_` in their names belong to shipped maps and are not declared.
    """
    groups = {"inputs": w.inputs, "params": w.params, "buffers": w.buffers}
    text = f"name: {w.name}\n{more}"
    for name, dims in groups.items():
        text += section(name, {n: d for n, d in dims.items() if "_" not in n}, sizes or {})
    text += state or section("state", w.states, sizes or {})
    return Construct(w, f"{text}update: {block(update)}\noutput: {block(output)}\n")


def formula(name: str, text: str, meaning: Formula, output: str = "V", **more: object) -> Construct:
    """An output of a sum of outer products; `meaning(x, W, W before the token)`."""

    def step(x: Values, p: Values, s: Values) -> tuple[Tensor, dict[str, Tensor]]:
        new = s["W"] + torch.outer(x["v"], x["k"])
        return meaning(x, new, s["W"]), {"W": new}

    w = Witness(name, step, QKV, W, output)
    w = replace(w, uses_position="t" in text.replace("(", " ").split(), **more)
    return rule(w, "W = W + outer(v, k)", text)


def update(name: str, text: str, meaning: Update, **more: object) -> Construct:
    """A matrix state of its own update, read with q; `meaning(x, params, W)`."""
    extra = more.pop("sections", "")
    inputs = {**QKV, **more.pop("inputs", {})}  # type: ignore[dict-item]

    def step(x: Values, p: Values, s: Values) -> tuple[Tensor, dict[str, Tensor]]:
        new = meaning(x, p, s["W"])
        return new @ x["q"], {"W": new}

    w = Witness(name, step, inputs, W, "V")
    words = text.replace("(", " ").split()
    w = replace(w, uses_position="t" in words, **more)
    return rule(w, text, "W @ q", extra)
