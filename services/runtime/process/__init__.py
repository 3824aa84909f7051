"""How a service runs as a process: settings, the host, and what every process shares."""
