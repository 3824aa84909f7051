"""The vocabulary of Muster: what can be asked, what was decided, and what follows from it.

Everything below this folder is pure. It knows no clock, no randomness, no network and no environment; time, ids
and random bits arrive as arguments. Services import from here; nothing here imports a service.
"""
