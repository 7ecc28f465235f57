"""The delta rule on keys of length one (DeltaNet, Yang et al. 2024).

Written by `fwgen compile deltanet`; compile again rather than edit.

    from generated.deltanet import deltanet
    y, final = deltanet(q, k, v, beta, output_final_state=True)
"""

from pathlib import Path

from fwgen.runtime.op import CompiledRule

deltanet = op = CompiledRule.from_folder(Path(__file__).resolve().parent)
