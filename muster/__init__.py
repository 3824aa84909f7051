"""The `muster` command: `cli` speaks to the API from anywhere, `embedded` runs everything on one machine."""
