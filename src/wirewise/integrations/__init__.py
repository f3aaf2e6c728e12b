"""Thin adapters to other libraries."""
