"""`CompiledRule`: a compiled rule as a callable; binds arguments and picks the road they take.

Plain eager calls go straight to prepared kernels (a call costs microseconds); whatever traces or
intercepts calls gets the operators that are registered with PyTorch. Both run the same kernels.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch.autograd import forward_ad

from ..errors import UnsupportedError
from .arguments import PLAIN, check, check_options, check_values
from .binding import Binder, with_token_axis
from .differentiable import differentiable
from .geometry import Tensors
from .kernels import KEPT, Kernels, Options
from .prepared import Prepared, look
from .reference_backend import ReferenceBackend
from .signature import Signature
from .start import start_states
from .torch_ops import operators

States = dict[str, torch.Tensor]
_grad_enabled = torch.is_grad_enabled
_modes = torch._C._len_torch_dispatch_stack
_functions = torch._C._len_torch_function_stack
_transforms = torch._C._functorch.peek_interpreter_stack
_tracing = torch.compiler.is_compiling


def _refuse_transforms(flat: Sequence[Any]) -> None:
    """Kernels have no tangents, and torch.func no gradients of theirs: refused, not lost."""
    stack = torch._C._functorch.get_interpreter_stack() or ()
    kinds, known = {level.key() for level in stack}, torch._C._functorch.TransformType
    tangents = known.Jvp in kinds
    if not tangents and forward_ad._current_level >= 0:
        tensors = [t for t in flat if isinstance(t, torch.Tensor)]
        tangents = any(
            forward_ad.unpack_dual(t).tangent is not None  # type: ignore[no-untyped-call]
            for t in tensors
        )
    if tangents:
        raise UnsupportedError(
            "forward-mode differentiation (jvp) has no kernels; op.reference(...) serves it"
        )
    if known.Grad in kinds:
        raise UnsupportedError(
            "the gradients of torch.func (grad, vjp) do not reach the kernels; torch.autograd "
            "does, and op.reference(...) serves torch.func"
        )


class CompiledRule:
    """A compiled rule. Call it on tensors [B, T, H, *dims]; `step` takes one token.

    `rule` is the rule as it was read, `forms` the parallel forms that exist. `sources` are
    generated files by name: `reference.py`, and what was asked of `cpu.cpp` and `triton_*.py`.
    """

    def __init__(self, signature: Signature, sources: Mapping[str, str], rule: Any = None) -> None:
        self.signature, self.sources, self.rule = signature, dict(sources), rule
        self.forms = signature.forms
        self._kernels = Kernels(signature, self.sources)
        self._operators = operators(self._kernels)
        self._loop: ReferenceBackend | None = None
        self._binder = Binder(signature)
        self._states = self._binder.states
        self._ready: dict[object, tuple[Prepared, bool]] = {}

    @staticmethod
    def from_folder(folder: Path) -> CompiledRule:
        """The rule of a generated package, from the files in its folder.

        Raises UnsupportedError where these are no longer what was written there.
        """
        names = [*folder.glob("reference.py"), *folder.glob("cpu.cpp"), *folder.glob("triton_*.py")]
        try:
            manifest = json.loads((folder / "manifest.json").read_text(encoding="utf-8"))
            sources = {path.name: path.read_text(encoding="utf-8") for path in sorted(names)}
            signature = Signature.from_json(json.dumps(manifest["signature"]))
            rule = (folder / "rule.yaml").read_text(encoding="utf-8")
        except (OSError, LookupError, TypeError, ValueError) as error:
            raise UnsupportedError(
                f"{folder} is not a whole package ({type(error).__name__}: {error}); "
                "`fwgen compile` writes it again"
            ) from None
        return CompiledRule(signature, sources, rule)

    def __repr__(self) -> str:
        return f"CompiledRule({self.signature.name!r}, {self.signature.hash[:8]})"

    def __reduce__(self) -> tuple[Any, ...]:
        return CompiledRule, (self.signature, self.sources, self.rule)

    def __deepcopy__(self, memo: Any) -> CompiledRule:
        return self  # it holds no tensors

    def __call__(
        self,
        *inputs: torch.Tensor,
        params: Mapping[str, torch.Tensor] | None = None,
        buffers: Mapping[str, torch.Tensor] | None = None,
        initial_state: Mapping[str, torch.Tensor] | torch.Tensor | None = None,
        output_final_state: bool = False,
        cu_seqlens: torch.Tensor | None = None,
        position: int | torch.Tensor | None = None,
        form: str = "auto",
        backend: str = "auto",
        chunk_size: int | None = None,
        **named: torch.Tensor,
    ) -> tuple[torch.Tensor, States | None]:
        """Run the rule over sequences: the output [B, T, H, *dims] and, if asked, final states.

        Inputs come in declared order or by keyword, [B, T, H, *dims]; an input may have fewer heads
        that divide H. params and buffers: [H, *dims] by name. initial_state: [N, H, *dims] by name
        (bare if there is one state). cu_seqlens [N + 1] packs N sequences into one row; position
        (int or int64 [N]) is the index of each first token. All float64, or float32 mixed with one
        half type; states are float32 (float64). The output has the first input's dtype.
        Raises ArgumentError for what does not fit, UnsupportedError for what no kernel serves.
        """
        flat = self._binder.flat(
            inputs, named, params, buffers, initial_state, cu_seqlens, position
        )
        y, finals = self._run(flat, Options(form, backend, chunk_size), output_final_state, False)
        if not output_final_state:
            return y, None
        return y, dict(zip(self._states, finals, strict=True))

    def step(
        self,
        *inputs: torch.Tensor,
        state: Mapping[str, torch.Tensor] | torch.Tensor | None = None,
        params: Mapping[str, torch.Tensor] | None = None,
        buffers: Mapping[str, torch.Tensor] | None = None,
        position: int | torch.Tensor | None = None,
        backend: str = "auto",
        **named: torch.Tensor,
    ) -> tuple[torch.Tensor, States]:
        """One token: inputs [B, H, *dims] to the output [B, H, *dims] and the new states.

        `state` is what the last step returned, or None at the start; it is left as it is.
        """
        bound = self._binder.in_order(inputs, named, step=True)
        wide = [with_token_axis(n, t) for n, t in zip(self._binder.inputs, bound, strict=True)]
        flat = self._binder.flat(wide, {}, params, buffers, state, None, position, step=True)
        y, finals = self._run(flat, Options("auto", backend, None), True, True)
        return y.squeeze(1), dict(zip(self._states, finals, strict=True))

    def reference(
        self, *inputs: torch.Tensor, **arguments: Any
    ) -> tuple[torch.Tensor, States | None]:
        """As a call, by a PyTorch loop over tokens in the widest dtype of its inputs (at least
        float32), differentiated by plain autograd, second derivatives included."""
        return self(*inputs, **{**arguments, "backend": "reference"})

    def plan(self, *inputs: torch.Tensor, **arguments: Any) -> dict[str, Any]:
        """What a call with these arguments would run, and why, without running it."""
        known = ("form", "backend", "chunk_size", "output_final_state")
        asked = {name: arguments.pop(name) for name in known if name in arguments}
        groups = ("params", "buffers", "initial_state", "cu_seqlens", "position")
        given = [arguments.pop(name, None) for name in groups]
        flat = self._binder.flat(inputs, arguments, *given)
        options = Options(
            asked.get("form", "auto"), asked.get("backend", "auto"), asked.get("chunk_size")
        )
        check_options(*options, asked.get("output_final_state", False))
        geometry = check(self.signature, flat)
        check_values(flat[-2], flat[-1], geometry.tokens)
        if options.backend == "reference":
            found: dict[str, Any] = {"backend": "reference", "form": "recurrent"}
            found["chunk_size"] = None
            found["why"] = 'backend="reference" was asked for; it is a loop over tokens in PyTorch'
        else:
            found = self._kernels.plan(geometry, options)._asdict()
        return {**found, "dtype": geometry.dtype, "heads": geometry.heads, "sizes": geometry.sizes}

    def init_state(
        self,
        B: int,
        H: int,
        sizes: Mapping[str, int],
        params: Mapping[str, torch.Tensor] | None = None,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
    ) -> States:
        """The states before the first token, [B, H, *dims]; `sizes` names the dims they need."""
        return start_states(self.signature, B, H, sizes, params, dtype, device)

    def _run(
        self, flat: list[Any], options: Options, want_final: bool, step: bool
    ) -> tuple[torch.Tensor, Sequence[torch.Tensor]]:
        check_options(*options, want_final)
        if _tracing():
            return self._intercepted(flat, options, want_final, step)
        intercepted = _modes() or _functions() or _transforms() is not None
        if (intercepted or forward_ad._current_level >= 0) and options.backend != "reference":
            _refuse_transforms(flat)
        if intercepted:
            return self._intercepted(flat, options, want_final, step, _transforms() is not None)
        try:
            key = (options, _grad_enabled(), want_final, step, look(flat))
            found = self._ready.get(key)
        except (AttributeError, RuntimeError, TypeError):
            check(self.signature, flat, step=step)
            raise
        if found is None:
            plain = all(t is None or type(t) in PLAIN for t in flat)
            if options.backend == "reference" or not plain:
                return self._intercepted(flat, options, want_final, step)
            training = _asks_gradient(flat)
            prepared = self._kernels.prepare(flat, options, training, want_final, step=step)
            if len(self._ready) >= KEPT:
                self._ready.clear()
            found = self._ready[key] = (prepared, training)
        prepared, training = found
        check_values(flat[-2], flat[-1], prepared.geometry.tokens)
        if training:
            y, *finals = differentiable(self._kernels, prepared, options, *flat)
            return y, finals
        y, finals, _ = prepared(flat)
        return y, finals

    def _intercepted(
        self,
        flat: Tensors,
        options: Options,
        want_final: bool,
        step: bool,
        transformed: bool = False,
    ) -> tuple[torch.Tensor, Sequence[torch.Tensor]]:
        """A call that something traces or wraps, or the reference.

        A transform, such as vmap, hides which tensors ask for gradients: all then may.
        """
        if options.backend == "reference":
            geometry = check(self.signature, flat, step=step)
            check_values(flat[-2], flat[-1], geometry.tokens)
            if options.form == "chunk":
                self._kernels.plan(geometry, options)
            if self._loop is None:
                self._loop = ReferenceBackend(self.signature, self.sources["reference.py"])
            y, states = self._loop(geometry, flat)
            return y, [states[name] for name in self._states]
        if not _tracing():
            check(self.signature, flat, step=step)
        training = _asks_gradient(flat) or (transformed and _grad_enabled())
        y, *rest = self._operators.forward(*flat, *options, training, want_final)
        return y, rest[: len(self._states)]


def _asks_gradient(flat: Tensors) -> bool:
    return torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in flat)
