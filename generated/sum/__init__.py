"""Additive writes, no normaliser (the sum rule of Schlag et al. 2021).

Written by `fwgen compile sum`; compile again rather than edit.

    from generated.sum import sum
    y, final = sum(q, k, v, output_final_state=True)
"""

from pathlib import Path

from fwgen.runtime.op import CompiledRule

sum = op = CompiledRule.from_folder(Path(__file__).resolve().parent)
