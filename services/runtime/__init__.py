"""The shared shell: settings, connections, the event store, and how a service is run."""
