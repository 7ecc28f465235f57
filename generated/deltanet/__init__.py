# The rule deltanet, hash c4856772d690215bb880029f165e58427b88f4c4e3ecb5147eb3591c7ee50ed1.
# Made by `fwgen compile deltanet`; compile again, do not edit.
"""The delta rule on keys of length one (DeltaNet, Yang et al. 2024).

    from generated.deltanet import deltanet
    y, final = deltanet(q, k, v, beta, output_final_state=True)
"""

from pathlib import Path

from fwgen.runtime.op import CompiledRule

deltanet = op = CompiledRule.from_folder(Path(__file__).resolve().parent)
