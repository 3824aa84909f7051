"""Makes what a new installation needs, once: keys (development), streams, tables, the first administrator."""
