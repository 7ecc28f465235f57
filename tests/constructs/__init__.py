"""Small rules, one per construct of the language, each with a token step in plain PyTorch."""

from constructs.decays import DECAYS
from constructs.formulas import FORMULAS
from constructs.maps import MAPS
from constructs.states import STATES
from constructs.structure import STRUCTURES
from constructs.table import Construct
from constructs.updates import UPDATES

CONSTRUCTS = {c.name: c for c in (*FORMULAS, *STRUCTURES, *UPDATES, *DECAYS, *STATES, *MAPS)}

__all__ = ["CONSTRUCTS", "Construct"]
