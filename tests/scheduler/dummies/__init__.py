"""Rules that only tests register: each is what a new rule is, one module."""
