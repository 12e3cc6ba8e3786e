"""Palimpsest: sessions that stream and memory that lasts. The rooms are told in the README."""
