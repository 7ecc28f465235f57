"""What `import fwgen` alone offers."""

import subprocess
import sys

CODE = """
import sys
import fwgen
assert callable(fwgen.features.orthogonal_random_features)
assert {"torch", "sympy"}.isdisjoint(sys.modules), "loaded before something is compiled"
for name in fwgen.__all__:
    getattr(fwgen, name)
"""


def test_import_is_light_and_complete():
    """`fwgen.features` needs no import of its own; torch and sympy wait until they are needed."""
    subprocess.run([sys.executable, "-c", CODE], check=True, timeout=60)
