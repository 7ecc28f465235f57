# The rule sum, hash 2ebca171134ba88a13a3d6e6fac8f69b83b44e5580ddbc7cbbbe5bd9daea2f9c.
# Made by `fwgen compile sum`; compile again, do not edit.
"""Additive writes, no normaliser (the sum rule of Schlag et al. 2021).

    from generated.sum import sum
    y, final = sum(q, k, v, output_final_state=True)
"""

from pathlib import Path

from fwgen.runtime.op import CompiledRule

sum = op = CompiledRule.from_folder(Path(__file__).resolve().parent)
