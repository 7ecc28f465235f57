"""Token loops written by hand from the mathematics of the rules, and a second formula evaluator.

Nothing here reads the compiler or the shipped YAML files: a misreading of a rule by the one side
can not hide in the other.
"""

from witnesses.decay import DECAY
from witnesses.delta import DELTA
from witnesses.linear import LINEAR
from witnesses.maps import FEATURE_MAPS, Map
from witnesses.recurrent import RECURRENT
from witnesses.table import Witness

WITNESSES = {w.name: w for w in (*LINEAR, *DELTA, *DECAY, *RECURRENT)}

__all__ = ["FEATURE_MAPS", "WITNESSES", "Map", "Witness"]
