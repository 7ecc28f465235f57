"""The last output re-enters query, key, value and rate (Recurrent Delta Net, Irie et al. 2021).

Written by `fwgen compile recurrent_delta`; compile again rather than edit.

    from generated.recurrent_delta import recurrent_delta
    y, final = recurrent_delta(q, k, v, beta, output_final_state=True)
"""

from pathlib import Path

from fwgen.runtime.op import CompiledRule

recurrent_delta = op = CompiledRule.from_folder(Path(__file__).resolve().parent)
