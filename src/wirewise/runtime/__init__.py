"""Carry plans out on torch process groups."""
