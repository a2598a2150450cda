"""Importers for foreign demonstrations."""
