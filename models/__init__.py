"""Readable models over compiled rules: one layer, `attention.FastWeightAttention`, many tasks."""
