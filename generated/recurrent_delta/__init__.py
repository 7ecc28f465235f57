# The rule recurrent_delta, hash aabc7ad9bd999bc22a233de4839c836ae12251dc2a1c9fbb9b184dd40fd54f4c.
# Made by `fwgen compile recurrent_delta`; compile again, do not edit.
"""The last output re-enters query, key, value and rate (Recurrent Delta Net, Irie et al. 2021).

    from generated.recurrent_delta import recurrent_delta
    y, final = recurrent_delta(q, k, v, beta, output_final_state=True)
"""

from pathlib import Path

from fwgen.runtime.op import CompiledRule

recurrent_delta = op = CompiledRule.from_folder(Path(__file__).resolve().parent)
