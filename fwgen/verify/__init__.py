"""What `fwgen check` runs: drawn problems, their golden results, tolerances and properties."""

from fwgen.verify.compare import Row, compare
from fwgen.verify.problem import Case, collect, draw
from fwgen.verify.properties import Outcome, check_form, show

__all__ = ["Case", "Outcome", "Row", "check_form", "collect", "compare", "draw", "show"]
