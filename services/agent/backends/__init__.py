"""Where pods really run: one module per kind of cluster, all behind `interface.Backend`."""
