"""Read models: what the log says, as tables that can be asked.

Everything here can be thrown away and rebuilt from the log, but for the schema `muster` (usage samples, and which
projection schema is the current one). The `project*` modules and `sentences` are pure. Nothing here appends to the log.
"""
