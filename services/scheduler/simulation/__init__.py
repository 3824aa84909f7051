"""The scheduler with a virtual clock: its own fold, plan and deciders over a log in memory.

`muster simulate` plays what happened, or a trace, under other settings; tests play days of load.
"""
