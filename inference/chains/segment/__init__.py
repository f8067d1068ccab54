"""Segments: a parameter that is drawn afresh at changes, and held between them."""
