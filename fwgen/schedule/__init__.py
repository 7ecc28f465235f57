"""Decisions: in which order statements run, over which axis they are vectorised, what is kept."""
