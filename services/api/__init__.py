"""The HTTP edge: authenticates, validates, sends commands, and reads the log and the projections.

It decides nothing and appends nothing: what it may publish is `cmd.request.>` alone.
"""
