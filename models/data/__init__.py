"""Corpora: scripts that fetch and cut them, and the readers that models use."""
