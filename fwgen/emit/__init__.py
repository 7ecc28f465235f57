"""Printers and templates: frozen IR to the text of kernels, modules and reports."""
