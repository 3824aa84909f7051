"""The steps in which a plan is made: one module per phase. Pure."""
