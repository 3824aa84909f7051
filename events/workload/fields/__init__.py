"""The fields of a workload, one module per section of the form. Each is declared once, here; see `events.fields`."""
