"""Rule text -> Rule -> Step: loader, grammar, names, dims. All faults of a rule are found here."""

from fwgen.language.derived import derived_dims
from fwgen.language.python_form import rule
from fwgen.language.rule import Rule, load_rule, lower, reread
from fwgen.language.shipped import list_feature_maps, list_rules

__all__ = [
    "Rule",
    "derived_dims",
    "list_feature_maps",
    "list_rules",
    "load_rule",
    "lower",
    "reread",
    "rule",
]
