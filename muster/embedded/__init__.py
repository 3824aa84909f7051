"""The control plane on one machine: `muster up`. Servers from wheels, two processes of services, one supervisor.

For development, demonstrations and tests: everything is one machine's, and so is its fate.
"""
