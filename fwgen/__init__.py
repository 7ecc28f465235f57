"""fwgen compiles one-step fast weight rules into fused kernels, forward and backward.

    op = fwgen.compile("rule.yaml")
    y, final = op(q, k, v, beta, output_final_state=True)

`compile` takes the path of a rule file, the name of a shipped rule, a `Rule`, or a function
decorated with `fwgen.rule`; see `fwgen --help` for the same on the command line.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Never

from fwgen import features
from fwgen.errors import ArgumentError, InternalError, RuleError, UnsupportedError
from fwgen.language import Rule, list_feature_maps, list_rules, load_rule, rule
from fwgen.language.rule import check_keywords
from fwgen.runtime.forks import Lock

if TYPE_CHECKING:
    from fwgen.runtime.op import CompiledRule

__version__ = "0.1.0"
__all__ = [
    "ArgumentError",
    "InternalError",
    "Rule",
    "RuleError",
    "UnsupportedError",
    "__version__",
    "compile",
    "features",
    "list_feature_maps",
    "list_rules",
    "load_rule",
    "rule",
]

_compiled: dict[str, CompiledRule] = {}
_compiling = Lock()


def compile(
    source: str | Path | Rule | Callable[..., Any],
    *,
    set: Mapping[str, float] | None = None,
    maps: Mapping[str, str] | None = None,
    **unknown: Never,
) -> CompiledRule:
    """The operator of a rule, compiled once per content.

    `set` overrides constants, `maps` the bodies of feature maps. Raises RuleError when the rule is
    faulty, ArgumentError for arguments that do not exist or are of another kind. The result is
    called with tensors `[B, T, H, *dims]`; see CompiledRule.
    """
    check_keywords("compile", source, unknown)
    loaded = load_rule(source, set=set, maps=maps)
    with _compiling:  # the algebra below the stages keeps tables that threads must not share
        op = _compiled.get(loaded.hash)
        if op is None:
            from fwgen.driver import compile_rule
            from fwgen.runtime.op import CompiledRule

            made = compile_rule(loaded, constants=set, maps=maps)
            op = _compiled[loaded.hash] = CompiledRule(made.signature, made.sources, made.rule)
    return op
