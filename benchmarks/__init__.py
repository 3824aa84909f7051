"""Figures, each beside a bare baseline measured in the same run. `make bench`; `make bench-short` for a quick look."""
