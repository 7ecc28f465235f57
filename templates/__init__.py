"""The kernel and package templates; a Python package so that installed copies carry them."""
