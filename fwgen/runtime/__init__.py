"""What a compiled rule needs at run time: argument checks, operators, backends, the build cache.

Nothing here imports the compiler, and imports inside the package are relative, so that the folder
can be copied beside a generated rule (with `errors.py` one level up) and work without fwgen.
"""
