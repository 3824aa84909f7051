"""What others may subscribe to: public events, each with a shape of its own, and their form as CloudEvents. Pure.

These shapes are a contract: a type keeps its meaning and its fields for ever, and fields are only ever added. They are
never the log's own structs, which are ours to change. `registry` lists them, `publish` makes them of a commit.
"""
