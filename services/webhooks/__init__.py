"""Posts a project's public events to addresses of others, signed, again and again until they are taken."""
