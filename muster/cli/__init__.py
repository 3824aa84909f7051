"""The `muster` command: a client of the HTTP API, and the few verbs that work on the log itself.

It holds no rules of the control plane: what is allowed and what is valid, the API decides.
"""
