"""Timing side by side: contenders interleaved in one process, medians, ratios, machine limits."""
